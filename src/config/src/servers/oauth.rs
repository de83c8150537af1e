//! Reads `oauth` of a server, by which the gateway gets access tokens for it.

use url::Url;

use crate::{
    AccountKind, OAuthGrant, Secret, UpstreamOAuth, UpstreamTarget,
    auth::read_issuer_url,
    loopback::is_loopback,
    reader::fields::Fields,
    tree::Node,
    values::{boolean, read_scope, read_visible_text, variant},
};

pub(super) const KEY: &str = "oauth";
/// The keys of the map. A test checks that `config/countersign.yaml` documents them.
pub(super) const KEYS: [&str; 10] = [
    "as",
    "grant",
    "client_id",
    "client_secret",
    "private_key",
    "scopes",
    "issuer",
    "subject_token_file",
    "dpop",
    "legacy",
];
/// The keys whose values are never shown.
pub(crate) const SECRET_KEYS: [&str; 2] = ["client_secret", "private_key"];
/// A client's id may be the URL of its metadata.
const MAX_CLIENT_ID_CHARS: usize = 2000;
const PRIVATE_KEY_HEADER: &str = "-----BEGIN PRIVATE KEY-----";

/// Reads the setting. Returns `None` if the server takes no access tokens of the gateway, or after reporting a problem.
pub(super) fn read(f: &mut Fields<'_>, target: &UpstreamTarget) -> Option<UpstreamOAuth> {
    // `target` has already reported the key if the server has a command.
    let UpstreamTarget::Url { urls, headers, .. } = target else { return None };
    let has_own_token = headers.iter().any(|(name, _)| name == "authorization");
    let oauth = match f.value_of(KEY).map(|value| &value.node) {
        None => {
            let oauth = UpstreamOAuth::default();
            return find_obstacle(urls, has_own_token, oauth.account).is_none().then_some(oauth);
        }
        Some(Node::Text(text)) if text == "off" => return None,
        Some(Node::Text(text)) if text == "auto" => UpstreamOAuth::default(),
        Some(Node::Map(_)) => read_map(f)?,
        Some(other) => {
            let message = format!("expected auto, off or a map, found {}", other.describe_kind());
            f.report(KEY, message, format!("Write auto, off, or a map with these keys: {}.", KEYS.join(", ")));
            return None;
        }
    };
    if let Some((message, remedy)) = find_obstacle(urls, has_own_token, oauth.account) {
        f.report(KEY, message, remedy);
        return None;
    }
    if urls.iter().any(is_unencrypted) {
        f.warn("its access tokens go over the network unencrypted; use https");
    }
    Some(oauth)
}

/// Returns the reason why the gateway cannot get access tokens for a server, with a remedy.
fn find_obstacle(urls: &[Url], has_own_token: bool, account: AccountKind) -> Option<(&'static str, &'static str)> {
    if has_own_token {
        return Some(("the server already has an Authorization header", "Take out one of the two."));
    }
    if urls.iter().any(|url| url.scheme().starts_with("ws")) {
        return Some(("access tokens are for http and https addresses", "Take it out, or write https://…."));
    }
    if urls.len() > 1 {
        let remedy = "Make a server of each address, or write oauth: off.";
        return Some(("a server with replicas cannot use access tokens: each is for one address", remedy));
    }
    if account == AccountKind::Person && urls.iter().any(is_unencrypted) {
        return Some(("people's access tokens would go over the network unencrypted", "Write https://…."));
    }
    None
}

fn is_unencrypted(url: &Url) -> bool {
    url.scheme() == "http" && !is_loopback(url)
}

fn read_map(f: &mut Fields<'_>) -> Option<UpstreamOAuth> {
    let mut map = f.section(KEY, &KEYS)?;
    let mut oauth = UpstreamOAuth::default();
    map.read_into("grant", variant(), &mut oauth.grant);
    let account = map.read("as", variant());
    oauth.client_id = map.parse("client_id", |node| read_visible_text(node, MAX_CLIENT_ID_CHARS));
    oauth.client_secret = read_secret(&mut map, "client_secret");
    oauth.private_key = read_secret(&mut map, "private_key");
    if oauth.private_key.as_ref().is_some_and(|Secret(key)| !key.trim_start().starts_with(PRIVATE_KEY_HEADER)) {
        let remedy = format!(
            "Give the text of a PEM file that begins with {PRIVATE_KEY_HEADER}: \"${{credential:NAME}}\" reads a file; \
             `openssl pkcs8 -topk8 -nodes` converts other forms."
        );
        map.report("private_key", "this is not a private key in the form PKCS #8", remedy);
    }
    oauth.scopes = map.parse_items("scopes", |_, node| read_scope(node));
    oauth.issuer = read_issuer_url(&mut map);
    // The file is read whenever a token is needed, because the platform renews it.
    oauth.subject_token_file = map.path("subject_token_file");
    map.read_into("dpop", boolean(), &mut oauth.dpop);
    map.read_into("legacy", boolean(), &mut oauth.legacy);
    oauth.account = account.unwrap_or_default();
    let belongs_to_gateway = oauth.account == AccountKind::Person && !oauth.is_personal();
    if belongs_to_gateway && account.is_some() && !map.has_problems() {
        let message = "nobody consents to this grant, so it is for the gateway itself, not for a person";
        map.report("as", message, "Write as: gateway, or leave it out.");
    }
    if belongs_to_gateway {
        oauth.account = AccountKind::Gateway;
    }
    check_grant(&mut map, &oauth);
    (!map.has_problems()).then_some(oauth)
}

/// Checks that the keys fit the grant.
fn check_grant(map: &mut Fields<'_>, oauth: &UpstreamOAuth) {
    if map.has_problems() {
        return;
    }
    let grant: &str = oauth.grant.into();
    let is_authenticated = oauth.client_secret.is_some() || oauth.private_key.is_some();
    if oauth.grant != OAuthGrant::AuthorizationCode && oauth.issuer.is_none() {
        // Otherwise the server would choose who receives the secret or the token.
        let remedy = "Name the authorization server that may receive the credentials of the gateway.";
        return map.report_map(format!("grant: {grant} needs an issuer"), remedy);
    }
    let needs_client = matches!(oauth.grant, OAuthGrant::ClientCredentials | OAuthGrant::Enterprise);
    if oauth.client_id.is_none() && (needs_client || is_authenticated) {
        map.report_map("client_id is missing", "Name the client that the authorization server knows for the gateway.");
    }
    if oauth.grant == OAuthGrant::ClientCredentials && oauth.secrets().next().is_none() {
        let message = "client_credentials needs a client_secret or a private_key";
        map.report_map(message, "Write client_secret: \"${SECRET}\".");
    }
    match (&oauth.subject_token_file, oauth.grant) {
        (None, OAuthGrant::WorkloadIdentity) => {
            let remedy = "Name the file in which the platform keeps the token of this workload.";
            map.report_map("subject_token_file is missing", remedy);
        }
        (None, OAuthGrant::Enterprise) if oauth.account == AccountKind::Gateway => {
            let message = "no identity provider vouches for the gateway, since it does not sign in";
            map.report("as", message, "Leave it out, or name a subject_token_file.");
        }
        (Some(_), OAuthGrant::AuthorizationCode | OAuthGrant::ClientCredentials) => {
            let message = format!("grant: {grant} takes no subject_token_file");
            map.report("subject_token_file", message, "Write grant: enterprise or grant: workload_identity.");
        }
        _ => {}
    }
}

/// Reads a secret with its variables filled in. An empty one counts as none.
fn read_secret(map: &mut Fields<'_>, key: &str) -> Option<Secret> {
    map.expanded_text(key).map(|text| Secret(text.value)).filter(|Secret(value)| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, Flags, LoadedConfig, error::ConfigError, load, show};

    const PRIVATE_KEY: &str =
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIKeyKeyKeyKeyKey\n-----END PRIVATE KEY-----\n";

    fn load_server(server: &str) -> Result<LoadedConfig, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, format!("mcpServers: {{ a: {{ {server} }} }}\n")).unwrap();
        let variables = [("SECRET", "hush-hush"), ("KEY", PRIVATE_KEY), ("HOME", "/nowhere")];
        load(&Flags { config: Some(file), ..Flags::default() }, &Environment::new(dir.path(), &variables))
    }

    fn read_oauth(server: &str) -> Option<UpstreamOAuth> {
        let mut servers = load_server(server).unwrap_or_else(|error| panic!("{error}")).config.upstreams;
        servers.remove(0).oauth
    }

    #[test]
    fn url_without_own_token_gets_tokens_on_demand() {
        let auto = Some(UpstreamOAuth::default());
        for server in ["url: https://a/mcp", "url: https://a/mcp, oauth: auto", "url: 'http://127.0.0.1:1/mcp'"] {
            assert_eq!(read_oauth(server), auto, "{server}");
        }
        for server in [
            "command: x",
            "url: wss://a/mcp",
            "url: 'http://a/mcp'",
            "url: https://a/mcp, oauth: off",
            "url: https://a/mcp, headers: { Authorization: x }",
            "url: https://a/mcp, replicas: [https://b/mcp]",
        ] {
            assert_eq!(read_oauth(server), None, "{server}");
        }
    }

    #[test]
    fn all_keys_are_read_and_secrets_stay_hidden() {
        let server = "url: https://a/mcp, oauth: { as: gateway, client_id: x, client_secret: '${SECRET}', private_key: '${KEY}', \
                      scopes: [a, b], issuer: https://id, dpop: true, legacy: true }";
        let loaded = load_server(server).unwrap_or_else(|error| panic!("{error}"));
        let expected = UpstreamOAuth {
            account: AccountKind::Gateway,
            client_id: Some("x".to_owned()),
            client_secret: Some(Secret("hush-hush".to_owned())),
            private_key: Some(Secret(PRIVATE_KEY.to_owned())),
            scopes: vec!["a".to_owned(), "b".to_owned()],
            issuer: Some("https://id".to_owned()),
            dpop: true,
            legacy: true,
            ..UpstreamOAuth::default()
        };
        assert_eq!(loaded.config.upstreams[0].oauth.as_ref(), Some(&expected));
        assert!(loaded.secrets.contains(&Secret("hush-hush".to_owned())));
        let shown = show::yaml(&loaded.settings);
        assert!(shown.contains("${SECRET}") && !shown.contains("hush") && !shown.contains("BEGIN"), "{shown}");
        let literal = load_server("url: https://a/mcp, oauth: { client_id: x, client_secret: plain-text }").unwrap();
        assert!(!show::yaml(&literal.settings).contains("plain-text"));
    }

    #[test]
    fn grant_of_the_gateway_implies_its_account() {
        let grant = "url: https://a/mcp, oauth: { grant: client_credentials, issuer: 'https://id', client_id: x, client_secret: y }";
        assert_eq!(read_oauth(grant).unwrap().account, AccountKind::Gateway);
        let grant =
            "url: https://a/mcp, oauth: { grant: workload_identity, issuer: 'https://id', subject_token_file: token }";
        let oauth = read_oauth(grant).unwrap();
        assert_eq!(oauth.account, AccountKind::Gateway);
        assert!(oauth.subject_token_file.unwrap().is_absolute());
    }

    #[test]
    fn wrong_settings_are_refused() {
        for (server, part) in [
            ("command: x, oauth: auto", "a server with a command does not take this key"),
            ("url: https://a, oauth: on", "expected auto, off or a map"),
            ("url: https://a, oauth: true", "expected auto, off or a map"),
            ("url: https://a, headers: { Authorization: x }, oauth: auto", "already has an Authorization header"),
            ("url: wss://a, oauth: auto", "for http and https addresses"),
            ("url: https://a, replicas: [https://b], oauth: auto", "a server with replicas"),
            ("url: 'http://a', oauth: { as: person }", "unencrypted"),
            ("url: https://a, oauth: { as: me }", "person"),
            ("url: https://a, oauth: { clientid: x }", "Did you mean `client_id`?"),
            ("url: https://a, oauth: { client_secret: x }", "client_id is missing"),
            ("url: https://a, oauth: { private_key: x }", "not a private key"),
            ("url: https://a, oauth: { scopes: ['a b'] }", "is not a scope"),
            ("url: https://a, oauth: { issuer: 'http://id' }", "is not an https URL"),
            ("url: https://a, oauth: { subject_token_file: x }", "takes no subject_token_file"),
            (
                "url: https://a, oauth: { grant: workload_identity, issuer: 'https://id' }",
                "subject_token_file is missing",
            ),
            (
                "url: https://a, oauth: { grant: enterprise, issuer: 'https://id', subject_token_file: x }",
                "client_id is missing",
            ),
            ("url: https://a, oauth: { grant: enterprise, issuer: 'https://id', client_id: x }", "auth.oidc"),
            (
                "url: https://a, oauth: { grant: enterprise, issuer: 'https://id', client_id: x, as: gateway }",
                "no identity provider vouches for the gateway",
            ),
            (
                "url: https://a, oauth: { grant: client_credentials, issuer: 'https://id', client_id: x }",
                "needs a client_secret",
            ),
            ("url: https://a, oauth: { grant: workload_identity, subject_token_file: x }", "needs an issuer"),
            (
                "url: https://a, oauth: { grant: client_credentials, client_id: x, client_secret: '${SECRET}', as: person }",
                "not for a person",
            ),
        ] {
            let error = load_server(server).unwrap_err();
            assert_eq!(error.problems.len(), 1, "{server}: {error}");
            assert!(error.to_string().contains(part), "{server}: {error}");
        }
    }
}
