use countersign_domain::policy::GroupMember;

use super::*;
use crate::{Environment, Flags, LoadedConfig, error::ConfigError, load, show};

const TOKEN_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

fn load_yaml(yaml: &str) -> Result<LoadedConfig, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.yaml");
    std::fs::write(&file, yaml).unwrap();
    let variables = [("SECRET", "hush"), ("KEY", TOKEN_KEY), ("HOME", "/nowhere")];
    load(&Flags { config: Some(file), ..Flags::default() }, &Environment::new(dir.path(), &variables))
}

fn load_auth(auth: &str) -> Result<LoadedConfig, ConfigError> {
    load_yaml(&format!("public_url: https://gw.example\nauth: {{ tokens: [{auth}] }}\n"))
}

#[test]
fn issuer_is_read_and_shown_without_its_secret() {
    let full = "{ issuer: https://id.example/realms/a, audiences: [https://gw.example/mcp, gw], \
                roles: { '*': agent, platform: admin }, groups: { claim: memberOf }, \
                introspection: { client_id: gw, client_secret: '${SECRET}' } }";
    let loaded = load_auth(&format!("{full}, {{ issuer: 'http://127.0.0.1:9000' }}")).unwrap_or_else(|e| panic!("{e}"));
    let [first, second] = &loaded.config.auth.tokens[..] else { panic!("two issuers") };
    assert_eq!((first.issuer.as_str(), first.groups_claim.as_str()), ("https://id.example/realms/a", "memberOf"));
    assert_eq!(first.roles, BTreeMap::from([("*".to_owned(), Role::Agent), ("platform".to_owned(), Role::Admin)]));
    assert_eq!(first.introspection.as_ref().unwrap().secret.0, "hush");
    assert_eq!((second.audiences.len(), second.roles.len(), second.groups_claim.as_str()), (0, 0, "groups"));
    assert_eq!(loaded.config.resource().as_deref(), Some("https://gw.example/mcp"));
    let shown = show::yaml(&loaded.settings);
    assert!(shown.contains("${SECRET}") && !shown.contains("hush"), "{shown}");
    assert_eq!(load_auth(&first.show()).unwrap().config.auth.tokens, std::slice::from_ref(first));
    let literal = load_auth("{ issuer: https://a, introspection: { client_id: a, client_secret: plain } }").unwrap();
    assert!(!show::yaml(&literal.settings).contains("plain"));
}

#[test]
fn issuer_of_tokens_defaults_to_the_provider_of_people() {
    let auth = "{ oidc: { issuer: https://id.example, client_id: gw }, tokens: [{ roles: { dev: agent } }] }";
    let loaded = load_yaml(&format!("public_url: https://gw.example\nauth: {auth}\n")).unwrap();
    assert_eq!(loaded.config.auth.tokens[0].issuer, "https://id.example");
}

#[test]
fn wrong_issuers_are_refused() {
    for (auth, part) in [
        ("{ audiences: [a] }", "the issuer is missing"),
        ("{ issuer: id.example }", "is not a URL"),
        ("{ issuer: 'http://id.example' }", "is not an https URL"),
        ("{ issuer: 'https://id.example?a=b' }", "has a query"),
        ("{ issuer: 'https://u:p@id.example' }", "a user name"),
        ("{ issuer: 'https://id.example/ä' }", "visible ASCII"),
        ("{ issuer: https://a }, { issuer: https://a }", "the issuers 1 and 2 are the same"),
        ("{ issuer: https://a, roles: { x: root } }", "`root` is not a role"),
        ("{ issuer: https://a, roles: { '*': reviewer } }", "would let everybody with a token decide"),
        ("{ issuer: https://a, roles: { x: agent, '*': admin } }", "would let everybody with a token decide"),
        ("{ issuer: https://a, introspection: { client_id: a } }", "client_secret is missing"),
        ("{ issuer: https://a, introspection: { client_id: a, client_secret: '${NOPE}' } }", "NOPE"),
        (
            "{ issuer: https://a, introspection: { client_id: a, client_secret: b } }, { issuer: https://b }, \
             { issuer: https://c, introspection: { client_id: a, client_secret: b } }",
            "the issuers 1 and 3 both have introspection",
        ),
        ("{ issuer: https://a, audience: [b] }", "Did you mean `audiences`?"),
        ("https://a", "issuer 1 is a text, not a map"),
    ] {
        let error = load_auth(auth).unwrap_err().to_string();
        assert!(error.contains(part), "{auth}: {error}");
    }
    let error = load_yaml("auth: { tokens: [{ issuer: https://a }] }").unwrap_err().to_string();
    assert!(error.contains("auth.tokens: public_url is missing"), "{error}");
}

#[test]
fn issuers_may_use_certificates_of_own_authorities() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-subj", "/CN=Us", "-keyout", "/dev/null", "-out"])
        .arg(&ca)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let tls = format!("tls: {{ ca: '{}' }}", ca.display());
    let loaded = load_auth(&format!("{{ issuer: https://a, {tls} }}")).unwrap_or_else(|error| panic!("{error}"));
    let [issuer] = &loaded.config.auth.tokens[..] else { panic!("one issuer") };
    assert_eq!(issuer.authorities.as_ref().map(|own| own.certificates.len()), Some(1));
    assert_eq!(load_auth(&issuer.show()).unwrap().config.auth.tokens, std::slice::from_ref(issuer));
    let loaded = load_oidc(&format!("{{ issuer: https://a, client_id: a, {tls} }}")).unwrap();
    let oidc = loaded.config.auth.oidc.unwrap();
    assert_eq!(oidc.authorities, issuer.authorities);
    for (tokens, inherits) in [("{ audiences: [a] }", true), ("{ issuer: https://b }", false)] {
        let both = format!("{{ oidc: {}, tokens: [{tokens}] }}", oidc.show());
        let loaded = load_yaml(&format!("public_url: https://gw.example\nauth: {both}\n")).unwrap();
        let expected = oidc.authorities.clone().filter(|_| inherits);
        assert_eq!(loaded.config.auth.tokens[0].authorities, expected, "{tokens}");
    }
    assert_eq!(load_oidc(&oidc.show()).unwrap().config.auth.oidc, Some(oidc));
    let error = load_auth(&format!("{{ issuer: 'http://127.0.0.1:9', {tls} }}")).unwrap_err().to_string();
    assert!(error.contains("auth.tokens.tls.ca: there is no https or wss address"), "{error}");
    let error = load_auth("{ issuer: https://a, tls: { ca: none.pem } }").unwrap_err().to_string();
    assert!(error.contains("the file `none.pem` cannot be used"), "{error}");
}

#[test]
fn groups_may_name_subjects_and_claim_groups() {
    let groups = "{ dba: [alice, { claim_group: 'db admins' }, { claim_group: [https://id.example, ops] }, \
                  { subject: [https://id.example, 'a b#c'] }] }";
    let loaded = load_yaml(&format!("policy: {{ groups: {groups} }}")).unwrap_or_else(|e| panic!("{e}"));
    let subject = GroupMember::Subject { issuer: "https://id.example".into(), subject: "a b#c".into() };
    let claim_group = |issuer: Option<&str>, group: &str| GroupMember::ClaimGroup {
        issuer: issuer.map(str::to_owned),
        group: group.to_owned(),
    };
    let expected = [
        GroupMember::Name("alice".into()),
        claim_group(None, "db admins"),
        claim_group(Some("https://id.example"), "ops"),
        subject,
    ];
    assert_eq!(loaded.config.policy.groups["dba"], expected);
    let again = load_yaml(&format!("policy: {{ groups: {} }}", show::groups(&loaded.config))).unwrap();
    assert_eq!(again.config.policy.groups, loaded.config.policy.groups);
    let two = "public_url: https://gw\nauth: { tokens: [{ issuer: https://a }, { issuer: https://b }] }\n";
    let error = load_yaml(&format!("{two}policy: {{ groups: {{ dba: [{{ claim_group: x }}] }} }}")).unwrap_err();
    assert!(error.to_string().contains("`dba` names a claim_group without its issuer"), "{error}");
    for (member, part) in [
        ("https://id.example#a", "is not a name"),
        ("{ claim_group: '' }", "does not fit here"),
        ("{ group: a }", "not a member of a group"),
        ("{ subject: [https://id.example] }", "expected an issuer and a subject"),
        ("{ subject: [x, y] }", "is not a URL"),
    ] {
        let error = load_yaml(&format!("policy: {{ groups: {{ dba: [{member}] }} }}")).unwrap_err().to_string();
        assert!(error.contains(part), "{member}: {error}");
    }
}

fn load_oidc(oidc: &str) -> Result<LoadedConfig, ConfigError> {
    load_yaml(&format!("public_url: https://gw.example\nauth: {{ oidc: {oidc} }}\n"))
}

#[test]
fn provider_is_read_and_shown_without_its_secret() {
    let full = "{ issuer: https://id.example, client_id: gw, client_secret: '${SECRET}', cli_client_id: gw-cli, scopes: [openid, offline_access], \
                roles: { security: admin, '*': viewer }, groups: { claim: memberOf }, \
                require: { hd: example.com, email_verified: true }, refresh: 5m }";
    let loaded = load_oidc(full).unwrap_or_else(|error| panic!("{error}"));
    let oidc = loaded.config.auth.oidc.unwrap();
    assert_eq!(oidc.client_secret, Some(Secret("hush".into())));
    assert_eq!((oidc.groups_claim.as_str(), oidc.refresh.as_secs()), ("memberOf", 300));
    assert_eq!(oidc.require["email_verified"], "true");
    assert_eq!(oidc.cli_client(), Some("gw-cli"));
    let shown = show::yaml(&loaded.settings);
    assert!(shown.contains("${SECRET}") && !shown.contains("hush"), "{shown}");
    assert_eq!(load_oidc(&oidc.show()).unwrap().config.auth.oidc, Some(oidc));
    let short = load_oidc("{ issuer: https://id.example, client_id: gw, client_secret: '' }").unwrap();
    let short = short.config.auth.oidc.unwrap();
    assert_eq!(short.cli_client(), Some("gw"), "it is public");
    assert_eq!((short.client_secret, short.scopes.len(), short.refresh.as_secs()), (None, 4, 60));
    let confidential =
        load_oidc("{ issuer: https://id.example, client_id: gw, client_secret: a, cli_client_id: null }").unwrap();
    assert_eq!(confidential.config.auth.oidc.unwrap().cli_client(), None);
    assert_eq!(load_oidc("null").unwrap().config.auth.oidc, None);
}

#[test]
fn roles_for_everybody_or_nobody_are_noticed() {
    let warnings = |roles: &str| {
        let oidc = format!("{{ issuer: https://a, client_id: a, roles: {roles}, require: {{ hd: a }} }}");
        load_oidc(&oidc).unwrap().warnings.join("\n")
    };
    assert!(warnings("{}").contains("nobody can sign in"));
    assert!(warnings("{ '*': admin }").contains("makes everybody an admin"));
    assert_eq!(warnings("{ '*': reviewer, ops: admin }"), "");
}

#[test]
fn wrong_providers_are_refused() {
    for (oidc, part) in [
        ("https://id.example", "expected an identity provider"),
        ("{ issuer: https://a }", "client_id is missing"),
        ("{ client_id: a }", "issuer is missing"),
        ("{ issuer: 'http://id.example', client_id: a }", "is not an https URL"),
        ("{ issuer: https://a, client_id: a, scopes: [email] }", "openid is missing"),
        ("{ issuer: https://a, client_id: a, scopes: [openid, 'a b'] }", "is not a scope"),
        ("{ issuer: https://a, client_id: a, roles: { x: agent } }", "the dashboard is for people"),
        ("{ issuer: https://a, client_id: a, roles: { x: root } }", "`root` is not a role"),
        ("{ issuer: https://a, client_id: a, roles: { '*': viewer } }", "would let in everybody"),
        ("{ issuer: https://a, client_id: a, require: { hd: [a] } }", "auth.oidc.require.hd"),
        ("{ issuer: https://a, client_id: a, refresh: 0s }", "out of range"),
        ("{ issuer: https://a, client_id: a, role: {} }", "Did you mean `roles`?"),
    ] {
        let error = load_oidc(oidc).unwrap_err().to_string();
        assert!(error.contains(part), "{oidc}: {error}");
    }
    let error = load_yaml("auth: { oidc: { issuer: https://a, client_id: a } }").unwrap_err().to_string();
    assert!(error.contains("auth.oidc: public_url is missing"), "{error}");
}

#[test]
fn enterprise_grant_needs_people_who_sign_in() {
    let load_with = |mode: &str| {
        let server = "url: https://a, oauth: { grant: enterprise, issuer: 'https://as', client_id: x }";
        load_yaml(&format!(
            "public_url: https://gw.example\nauth: {{ mode: {mode}, oidc: {{ issuer: https://id, client_id: a }} }}\n\
             mcpServers: {{ a: {{ {server} }} }}\n"
        ))
    };
    assert!(load_with("keys").is_ok());
    let error = load_with("local").unwrap_err().to_string();
    assert!(error.contains("nobody signs in") && error.contains("auth.mode: keys"), "{error}");
}

#[test]
fn key_of_tokens_is_checked_and_hidden() {
    let loaded = load_yaml("secrets: { key: '${KEY}' }").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(loaded.config.token_key, Some(Secret(TOKEN_KEY.to_owned())));
    let shown = show::yaml(&loaded.settings);
    assert!(shown.contains("${KEY}") && !shown.contains("AAAA"), "{shown}");
    assert!(load_yaml("secrets: { key: \" ${KEY}\\n\" }").is_ok(), "blanks around the key are ignored, as in a file");
    for (wrong, part) in [
        ("secrets: { key: hush }", "not a key of 32 bytes"),
        ("secrets: { key: '${KEY}=' }", "not a key of 32 bytes"),
        ("secrets: { key: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB= }", "not a key of 32 bytes"),
        ("secrets: { key: '${KEY}', key_file: /k }", "Take out one of the two"),
    ] {
        let error = load_yaml(wrong).unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains("hush"), "{wrong}: {error}");
    }
}
