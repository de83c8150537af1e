//! What the configuration says of one upstream server (`mcpServers`).

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustls::pki_types::CertificateDer;
use url::Url;

use countersign_domain::changes::digest::PartHasher;
use countersign_domain::recipes::Recipes;

/// A value that never shows in a log, an error or `config show`.
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
    /// What people see of the target: a command with its arguments, variables by their names and without secrets, or the
    /// hosts of addresses.
    pub label: String,
    /// What the names of its tools and prompts begin with; empty for none, which leaves its URIs alone too.
    pub prefix: String,
    /// `None`: shared for stdio, WebSocket and stateless servers, by session for handshake-era HTTP.
    pub isolation: Option<Isolation>,
    pub serialize: Serialization,
    /// How long one call may take, not counting the time that a person or a client takes to answer a question.
    pub timeout: Duration,
    /// Other times by the tool's own name (a glob), first match.
    pub tool_timeouts: Vec<(String, Duration)>,
    /// Calls at a time, and calls that wait for a place.
    pub max_in_flight: usize,
    pub max_queue: usize,
    /// The gateway is not ready while it is away.
    pub required: bool,
    /// By the tool's own name (globs): none of `deny`, and, if `allow` has any, one of `allow`.
    pub tools_allow: Vec<String>,
    pub tools_deny: Vec<String>,
    /// Its `readOnlyHint`s are believed.
    pub trust_annotations: bool,
    /// What it may ask of clients that can answer.
    pub sampling: bool,
    pub elicitation: bool,
    pub allow_own_files: bool,
    pub breaker: BreakerConfig,
    /// How much of its lists is read.
    pub lists: ListsConfig,
    /// Names of headers of a client's HTTP request that are passed on, in lower case.
    pub forward_headers: Vec<String>,
    /// The provider that answers calls while the circuit is open.
    pub fallback: Option<String>,
    /// The text that answers a tool call while the circuit is open and there is no other fallback.
    pub fallback_text: Option<String>,
    /// Keep answers of reads as long as the server allows.
    pub cache: bool,
    /// How calls of its tools are previewed.
    pub previews: Recipes,
    /// Whom its addresses are trusted by beside the public authorities.
    pub authorities: Option<Authorities>,
    /// What it says of itself to models is passed on.
    pub instructions: bool,
}

/// Certificates of authorities, as they were read from a file. Its `Debug` tells one state of the file from another.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorities {
    pub file: PathBuf,
    pub certificates: Vec<CertificateDer<'static>>,
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hasher = PartHasher::new("countersign.authorities.1");
        for certificate in &self.certificates {
            hasher.part(certificate);
        }
        write!(f, "{} ({})", self.file.display(), hasher.finish())
    }
}

/// Its `Debug` and `Display` tell nothing that may have come out of a variable.
#[derive(Clone, PartialEq, Eq)]
pub enum UpstreamTarget {
    Command {
        command: String,
        args: Vec<String>,
        env: BTreeMap<String, Secret>,
        /// `None`: the data folder's `servers/<name>`.
        cwd: Option<PathBuf>,
    },
    Url {
        /// `url`, then `replicas`.
        urls: Vec<Url>,
        headers: Vec<(String, Secret)>,
        transport: UrlTransport,
    },
}

impl UpstreamTarget {
    /// `sha256:…` of what decides which program answers: the command with its arguments and folder, or the addresses
    /// and how they are spoken to. Of `env` and `headers` only the names count, so that a credential can be renewed;
    /// one that is part of an argument or of an address is part of this too.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut hasher = PartHasher::new("countersign.target.1");
        match self {
            Self::Command { command, args, env, cwd } => {
                hasher.part(b"command").part(command.as_bytes()).number(args.len() as u64);
                for arg in args {
                    hasher.part(arg.as_bytes());
                }
                hasher.number(env.len() as u64);
                for name in env.keys() {
                    hasher.part(name.as_bytes());
                }
                match cwd {
                    Some(cwd) => hasher.number(1).part(cwd.as_os_str().as_encoded_bytes()),
                    None => hasher.number(0),
                };
            }
            Self::Url { urls, headers, transport } => {
                // In whatever order they stand: all of them are one server.
                let mut urls: Vec<&str> = urls.iter().map(Url::as_str).collect();
                let mut names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
                urls.sort_unstable();
                names.sort_unstable();
                hasher.part(b"url").part(transport.word().as_bytes());
                for texts in [urls, names] {
                    hasher.number(texts.len() as u64);
                    for text in texts {
                        hasher.part(text.as_bytes());
                    }
                }
            }
        }
        hasher.finish()
    }
}

/// For logs and for people: the program's file name, or the addresses' hosts.
impl fmt::Display for UpstreamTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { command, .. } => {
                let name = Path::new(command).file_name().unwrap_or_default();
                write!(f, "command {}", name.to_string_lossy())
            }
            Self::Url { urls, .. } => {
                for (index, url) in urls.iter().enumerate() {
                    let between = if index == 0 { "" } else { ", " };
                    write!(f, "{between}{}://{}", url.scheme(), url.host_str().unwrap_or_default())?;
                    url.port().map_or(Ok(()), |port| write!(f, ":{port}"))?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for UpstreamTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlTransport {
    /// By scheme: `ws` and `wss` are WebSocket; `http` and `https` are Streamable HTTP or, where a server does not
    /// know that, the 2024-11-05 pair.
    Auto,
    StreamableHttp,
    Sse,
    WebSocket,
}

impl UrlTransport {
    const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::StreamableHttp => "streamable-http",
            Self::Sse => "sse",
            Self::WebSocket => "websocket",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Clients that can be asked nothing share a connection.
    Shared,
    /// Each handshake-era session of a client has a connection of its own.
    Session,
}

/// Which approved calls of a server's tools run one after another, where no recipe says what they act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serialization {
    /// Those of all its tools.
    Server,
    /// Those of each tool by itself.
    Tool,
}

/// How much is read of what a server lists; what is beyond is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListsConfig {
    /// Of each list: tools, prompts, resources, resource templates.
    pub entries: usize,
    /// Of all lists together.
    pub bytes: usize,
    /// Of each list.
    pub pages: usize,
}

/// When calls to an upstream that fails are not even tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Failures within `window` that open it; 0 never does.
    pub threshold: u32,
    pub window: Duration,
    /// How long it stays open before one call is tried.
    pub cooldown: Duration,
}

impl UpstreamConfig {
    /// What the URIs of its resources begin with, before a `+`, where it has a prefix.
    #[must_use]
    pub fn uri_slug(&self) -> String {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-');
        self.name.to_lowercase().chars().map(|c| if fits(c) { c } else { '-' }).collect()
    }

    /// With everything that the file does not say.
    #[must_use]
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_or_address_has_another_fingerprint_and_another_credential_has_not() {
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
        let others = [
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
        for (index, other) in others.iter().enumerate() {
            assert!(!others[..index].contains(other), "{index}");
        }
    }
}
