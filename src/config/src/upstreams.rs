//! The configuration of one upstream server (`mcpServers`).

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustls::pki_types::CertificateDer;
use strum::{IntoStaticStr, VariantArray};
use url::Url;

use countersign_domain::changes::digest::PartHasher;
use countersign_domain::recipes::Recipes;

/// A value that never appears in a log, an error or `config show`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// One entry of `mcpServers`, with its variables expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// The provider's name.
    pub name: String,
    pub target: UpstreamTarget,
    /// The target as people see it: the command with arguments, variable names and without secrets, or the hosts of the
    /// addresses.
    pub label: String,
    /// The prefix of tool and prompt names. An empty prefix leaves names and URIs unchanged.
    pub prefix: String,
    /// `None` shares the connection of stdio, WebSocket and stateless servers, and isolates handshake-era HTTP by session.
    pub isolation: Option<Isolation>,
    pub serialize: Serialization,
    /// The time limit of one call. The time in which a person or a client answers a question does not count.
    pub timeout: Duration,
    /// Time limits by glob of the tool's own name; the first match applies.
    pub tool_timeouts: Vec<(String, Duration)>,
    /// Calls that run at a time.
    pub max_in_flight: usize,
    /// Calls that may wait in the queue.
    pub max_queue: usize,
    /// Set if the gateway is not ready while this server is unavailable.
    pub required: bool,
    /// Globs for the tool's own name. A tool is offered only if it matches one of them; an empty list allows all.
    pub tools_allow: Vec<String>,
    /// Globs for the tool's own name. A tool that matches one of them is not offered.
    pub tools_deny: Vec<String>,
    /// Trusts the server's `readOnlyHint` annotations.
    pub trust_annotations: bool,
    /// The server may send sampling requests to clients that support them.
    pub sampling: bool,
    /// The server may send elicitation requests to clients that support them.
    pub elicitation: bool,
    pub allow_own_files: bool,
    pub breaker: BreakerConfig,
    /// Limits on reading the server's lists.
    pub lists: ListsConfig,
    /// Lower-case names of the headers that are forwarded from a client's HTTP request.
    pub forward_headers: Vec<String>,
    /// The provider that answers calls while the circuit is open.
    pub fallback: Option<String>,
    /// The text that answers a tool call while the circuit is open and there is no other fallback.
    pub fallback_text: Option<String>,
    /// Caches the answers of reads for as long as the server allows.
    pub cache: bool,
    /// Recipes for previews of tool calls.
    pub previews: Recipes,
    /// Certificate authorities that are trusted in addition to the public ones.
    pub authorities: Option<Authorities>,
    /// Passes the server's instructions for models on to clients.
    pub instructions: bool,
    /// The way in which the gateway gets access tokens for the server; `None` for a command, a configured `Authorization`
    /// header, or `oauth: off`.
    pub oauth: Option<UpstreamOAuth>,
}

/// The way in which the gateway gets access tokens for a server. The default follows the server's challenge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamOAuth {
    /// The kind of account that is used (`as`).
    pub account: AccountKind,
    pub grant: OAuthGrant,
    /// The client that the operator registered at the authorization server; `None` for a client that the gateway registers.
    pub client_id: Option<String>,
    pub client_secret: Option<Secret>,
    /// The private key of the client (PKCS #8, PEM) for `private_key_jwt`.
    pub private_key: Option<Secret>,
    /// The scopes to ask for, in place of those that the server names.
    pub scopes: Vec<String>,
    /// The authorization server, if it must be this one. Tokens and credentials are never sent to another one.
    pub issuer: Option<String>,
    /// A file with a token of the workload or of the person (`grant: workload_identity` and `enterprise`).
    pub subject_token_file: Option<PathBuf>,
    /// Binds tokens to a key of the gateway (RFC 9449).
    pub dpop: bool,
    /// Also accepts servers of 2025-03-26, whose authorization server is at their own address and has no metadata.
    pub legacy: bool,
}

impl UpstreamOAuth {
    /// Returns `true` if each person uses an account of their own. Grants in which the gateway or its platform authenticates
    /// involve no person.
    pub fn is_personal(&self) -> bool {
        let grants_to_person = match self.grant {
            OAuthGrant::AuthorizationCode => true,
            OAuthGrant::Enterprise => self.subject_token_file.is_none(),
            OAuthGrant::ClientCredentials | OAuthGrant::WorkloadIdentity => false,
        };
        grants_to_person && self.account == AccountKind::Person
    }

    /// Returns the secrets.
    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        [&self.client_secret, &self.private_key].into_iter().flatten()
    }
}

/// The kind of account at a server that is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum AccountKind {
    /// Each person uses an account of their own.
    #[default]
    Person,
    /// Everybody uses one account, which an admin connects.
    Gateway,
}

/// The way in which access tokens are granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum OAuthGrant {
    /// A person consents in a browser (2026-07-28/basic/authorization).
    #[default]
    AuthorizationCode,
    /// The gateway authenticates as itself (extension `io.modelcontextprotocol/oauth-client-credentials`).
    ClientCredentials,
    /// The identity provider of the person vouches for them (extension `enterprise-managed-authorization`).
    Enterprise,
    /// A token of the platform that runs the gateway vouches for it (extension `auth/wif`).
    WorkloadIdentity,
}

/// Certificates of authorities read from a file. The `Debug` text differs if the content of the file differs.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorities {
    pub file: PathBuf,
    pub certificates: Vec<CertificateDer<'static>>,
}

impl Authorities {
    /// Returns the hash of the certificates.
    pub fn fingerprint(&self) -> String {
        let mut hasher = PartHasher::new("countersign.authorities.1");
        for certificate in &self.certificates {
            hasher.add_part(certificate);
        }
        hasher.finish()
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.file.display(), self.fingerprint())
    }
}

/// The program or the addresses of a server. `Debug` and `Display` show no values of variables.
#[derive(Clone, PartialEq, Eq)]
pub enum UpstreamTarget {
    Command {
        command: String,
        args: Vec<String>,
        env: BTreeMap<String, Secret>,
        /// The working directory. `None` is `servers/<name>` in the data directory.
        cwd: Option<PathBuf>,
    },
    Url {
        /// The address of `url`, followed by those of `replicas`.
        urls: Vec<Url>,
        headers: Vec<(String, Secret)>,
        transport: UrlTransport,
    },
}

impl UpstreamTarget {
    /// Returns the `sha256:…` of everything that decides which program answers: the command with its arguments and working
    /// directory, or the addresses and their transport. Only the names of `env` and `headers` count, so that a credential
    /// can be renewed. Credentials in arguments or addresses do count.
    pub fn fingerprint(&self) -> String {
        let mut hasher = PartHasher::new("countersign.target.1");
        match self {
            Self::Command { command, args, env, cwd } => {
                hasher.add_part(b"command").add_part(command.as_bytes()).add_texts(args).add_texts(env.keys());
                match cwd {
                    Some(cwd) => hasher.add_number(1).add_part(cwd.as_os_str().as_encoded_bytes()),
                    None => hasher.add_number(0),
                };
            }
            Self::Url { urls, headers, transport } => {
                // The order does not matter: all addresses are one server.
                let mut urls: Vec<&str> = urls.iter().map(Url::as_str).collect();
                let mut names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
                urls.sort_unstable();
                names.sort_unstable();
                hasher.add_part(b"url").add_part(<&str>::from(*transport).as_bytes()).add_texts(urls).add_texts(names);
            }
        }
        hasher.finish()
    }
}

/// Shows the file name of the program, or the hosts of the addresses.
impl fmt::Display for UpstreamTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { command, .. } => {
                let name = Path::new(command).file_name().unwrap_or_default();
                write!(f, "command {}", name.to_string_lossy())
            }
            Self::Url { urls, .. } => {
                let hosts: Vec<String> = urls.iter().map(|url| url.origin().ascii_serialization()).collect();
                f.write_str(&hosts.join(", "))
            }
        }
    }
}

impl fmt::Debug for UpstreamTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum UrlTransport {
    /// Chosen by scheme: `ws` and `wss` use WebSocket; `http` and `https` use Streamable HTTP, or the 2024-11-05 pair of
    /// endpoints if the server does not support it.
    Auto,
    StreamableHttp,
    Sse,
    #[strum(serialize = "websocket")]
    WebSocket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Isolation {
    /// Clients that support no questions of the server share one connection.
    Shared,
    /// Each handshake-era session of a client has its own connection.
    Session,
}

/// The scope within which approved calls run one after another if no recipe names their targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Serialization {
    /// All calls of the server.
    Server,
    /// The calls of each tool, independently of other tools.
    Tool,
}

/// Limits on a server's lists. Everything beyond them is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListsConfig {
    /// Entries of each list: tools, prompts, resources, resource templates.
    pub entries: usize,
    /// Bytes of all lists together.
    pub bytes: usize,
    /// Pages of each list.
    pub pages: usize,
}

/// The circuit breaker of a failing upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Failures within `window` that open the circuit; 0 never opens it.
    pub threshold: u32,
    pub window: Duration,
    /// The time that the circuit stays open before one call is tried.
    pub cooldown: Duration,
}

impl UpstreamConfig {
    /// Returns the name in lower case, with `-` for each character other than `[a-z0-9.-]`.
    pub fn slug(&self) -> String {
        let fits = |c: &char| matches!(c, 'a'..='z' | '0'..='9' | '.' | '-');
        self.name.chars().map(|c| Some(c.to_ascii_lowercase()).filter(fits).unwrap_or('-')).collect()
    }

    /// Returns the part before the `+` in URIs of the server's resources, which is used if the server has a prefix. It is
    /// a valid scheme (RFC 3986, section 3.1).
    pub fn uri_slug(&self) -> String {
        let mut slug = self.slug();
        // A scheme begins with a letter, and URL parsers in clients reject a whole list otherwise.
        if !slug.starts_with(|c: char| c.is_ascii_alphabetic()) {
            slug.insert(0, 'x');
        }
        slug
    }

    /// Creates a server with the defaults of all optional keys.
    pub fn new(name: &str, target: UpstreamTarget) -> Self {
        Self {
            name: name.to_owned(),
            label: target.to_string(),
            target,
            prefix: format!("{name}__"),
            isolation: None,
            serialize: Serialization::Server,
            timeout: Duration::from_secs(60),
            tool_timeouts: Vec::new(),
            max_in_flight: 256,
            max_queue: 1024,
            required: false,
            tools_allow: Vec::new(),
            tools_deny: Vec::new(),
            trust_annotations: false,
            sampling: true,
            elicitation: true,
            allow_own_files: false,
            breaker: BreakerConfig { threshold: 5, window: Duration::from_secs(30), cooldown: Duration::from_secs(10) },
            lists: ListsConfig { entries: 5000, bytes: 8 << 20, pages: 200 },
            forward_headers: Vec::new(),
            fallback: None,
            fallback_text: None,
            cache: false,
            previews: Recipes::default(),
            authorities: None,
            instructions: true,
            oauth: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_depends_on_target_but_not_on_credentials() {
        let command = |command: &str, args: &[&str], env: &[(&str, &str)], cwd: Option<&str>| {
            UpstreamTarget::Command {
                command: command.to_owned(),
                args: args.iter().map(|arg| (*arg).to_owned()).collect(),
                env: env.iter().map(|(name, value)| ((*name).to_owned(), Secret((*value).to_owned()))).collect(),
                cwd: cwd.map(PathBuf::from),
            }
            .fingerprint()
        };
        let url = |urls: &[&str], headers: &[(&str, &str)], transport| {
            UpstreamTarget::Url {
                urls: urls.iter().map(|url| url.parse().unwrap()).collect(),
                headers: headers.iter().map(|(n, v)| ((*n).to_owned(), Secret((*v).to_owned()))).collect(),
                transport,
            }
            .fingerprint()
        };
        let auto = UrlTransport::Auto;
        let one = command("npx", &["-y", "files"], &[("TOKEN", "1")], None);
        assert_eq!(one, command("npx", &["-y", "files"], &[("TOKEN", "2")], None));
        let two = url(&["https://a/", "https://b/"], &[("x", "1"), ("y", "1")], auto);
        assert_eq!(two, url(&["https://b/", "https://a/"], &[("y", "2"), ("x", "2")], auto));
        let fingerprints = [
            one,
            command("npx", &["-y", "other"], &[("TOKEN", "1")], None),
            command("npx", &["-yfiles"], &[("TOKEN", "1")], None),
            command("bunx", &["-y", "files"], &[("TOKEN", "1")], None),
            command("npx", &["-y", "files"], &[], None),
            command("npx", &["-y", "files"], &[("PATH", "1")], None),
            command("npx", &["-y", "files"], &[("TOKEN", "1")], Some("/w")),
            two,
            url(&["https://a/"], &[("x", "1"), ("y", "1")], auto),
            url(&["https://a/", "https://b/?k"], &[("x", "1"), ("y", "1")], auto),
            url(&["https://a/", "https://b/"], &[("x", "1")], auto),
            url(&["https://a/", "https://b/"], &[("x", "1"), ("y", "1")], UrlTransport::Sse),
        ];
        for (index, other) in fingerprints.iter().enumerate() {
            assert!(!fingerprints[..index].contains(other), "{index}");
        }
    }
}
