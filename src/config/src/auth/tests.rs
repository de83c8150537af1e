use countersign_domain::policy::GroupMember;

use super::*;
use crate::{Environment, Flags, LoadedConfig, error::ConfigError, load, show};

fn load_yaml(yaml: &str) -> Result<LoadedConfig, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.yaml");
    std::fs::write(&file, yaml).unwrap();
    let variables = [("SECRET", "hush"), ("HOME", "/nowhere")];
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
        ("{ issuer: https://a, introspection: { client_id: a } }", "client_secret is missing"),
        ("{ issuer: https://a, introspection: { client_id: a, client_secret: '${NOPE}' } }", "NOPE"),
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
        ("{ group: a }", "no member of a group"),
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
    let full = "{ issuer: https://id.example, client_id: gw, client_secret: '${SECRET}', scopes: [openid, offline_access], \
                roles: { security: admin, '*': viewer }, groups: { claim: memberOf }, \
                require: { hd: example.com, email_verified: true }, refresh: 5m }";
    let loaded = load_oidc(full).unwrap_or_else(|error| panic!("{error}"));
    let oidc = loaded.config.auth.oidc.unwrap();
    assert_eq!(oidc.client_secret, Some(Secret("hush".into())));
    assert_eq!((oidc.groups_claim.as_str(), oidc.refresh.as_secs()), ("memberOf", 300));
    assert_eq!(oidc.require["email_verified"], "true");
    let shown = show::yaml(&loaded.settings);
    assert!(shown.contains("${SECRET}") && !shown.contains("hush"), "{shown}");
    assert_eq!(load_oidc(&oidc.show()).unwrap().config.auth.oidc, Some(oidc));
    let short = load_oidc("{ issuer: https://id.example, client_id: gw, client_secret: '' }").unwrap();
    let short = short.config.auth.oidc.unwrap();
    assert_eq!((short.client_secret, short.scopes.len(), short.refresh.as_secs()), (None, 4, 60));
    assert_eq!(load_oidc("null").unwrap().config.auth.oidc, None);
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
