//! One-time codes that sign a person in to the dashboard, carried in a link's fragment.
//!
//! `countersign open` (another process) and the first start make them; whoever can write the data directory may.
//! A code is stored as a hash, works once, and for ten minutes. It never reaches a log.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use jiff::{SignedDuration, Timestamp};

use super::{keys, secret};
use countersign_config::Config;
use countersign_domain::principal::{Principal, Role, SecretHash};
use countersign_protocol::{ErrorKind, McpError};
use countersign_store::keys::{CodeOutcome, Credentials};

pub const PREFIX: &str = "csc_";
/// How long a code may wait for its use.
pub const LIFE: SignedDuration = SignedDuration::from_mins(10);

/// Where codes are used up.
pub trait CodeStore: Send + Sync + 'static {
    /// Whether there is such a code, used or not. One read.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    fn knows_code(&self, hash: &SecretHash) -> Result<bool, McpError>;

    /// Uses a code up. Blocks for a durable write.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, McpError>;
}

/// Makes a code and stores its hash. Blocks for a durable write.
///
/// # Errors
/// `STORE_UNAVAILABLE`; `INTERNAL_ERROR` without randomness.
pub fn create(keys: &dyn Credentials, now: Timestamp) -> Result<String, McpError> {
    let code = secret::generate(PREFIX)?;
    let expires_at = now.checked_add(LIFE).map_err(|_| McpError::new(ErrorKind::Internal, "the clock is off"))?;
    keys.put_code(&secret::hash(code.as_bytes()), now, expires_at).map_err(|error| {
        tracing::error!(%error, "cannot store a sign-in code");
        error.to_mcp()
    })?;
    Ok(code)
}

/// Whether a code may be one of ours at all. Cheap, so that wrong ones never wait for a durable write, nor anyone behind
/// them; what it costs says nothing of how near a guess is, since hashes are looked up.
///
/// # Errors
/// `UNAUTHORIZED` for one that was never made; `STORE_UNAVAILABLE`.
pub fn look_up(store: &dyn CodeStore, code: &str) -> Result<(), McpError> {
    if secret::well_formed(PREFIX, code) && store.knows_code(&secret::hash(code.as_bytes()))? {
        return Ok(());
    }
    Err(refused(CodeOutcome::Unknown))
}

/// Uses a code up and says who signs in with it. Blocks for a durable write.
///
/// # Errors
/// `UNAUTHORIZED` for a code that is unknown, used or too old, without saying which: the log does.
pub fn redeem(store: &dyn CodeStore, code: &str, now: Timestamp) -> Result<Principal, McpError> {
    let outcome = if secret::well_formed(PREFIX, code) {
        store.take_code(&secret::hash(code.as_bytes()), now)?
    } else {
        CodeOutcome::Unknown
    };
    if outcome == CodeOutcome::Taken {
        return Ok(Principal { name: local_reviewer(), role: Role::Reviewer, key_id: None, owner: None });
    }
    Err(refused(outcome))
}

fn refused(outcome: CodeOutcome) -> McpError {
    // Of guesses there may be thousands a second; of used and old ones as many as were made.
    if outcome == CodeOutcome::Unknown {
        tracing::debug!(?outcome, "a sign-in code was refused");
    } else {
        tracing::warn!(?outcome, "a sign-in code was refused");
    }
    McpError::new(ErrorKind::Unauthorized, "the sign-in code is unknown, used or too old; `countersign open` makes one")
}

/// The link that signs in: the code stands in the fragment, which browsers send to nobody.
///
/// `listening` is the address that is really bound (its port may have been 0 in the configuration).
#[must_use]
pub fn link(config: &Config, listening: SocketAddr, code: &str) -> String {
    if let Some(url) = &config.public_url {
        return format!("{}/#code={code}", url.trim_end_matches('/'));
    }
    let ip = match listening.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    format!("{scheme}://{}/#code={code}", SocketAddr::new(ip, listening.port()))
}

/// What the reviewer at this machine is called: the operating system's user, as far as that is a principal's name.
#[must_use]
pub fn local_reviewer() -> String {
    let from_system = std::fs::read_to_string("/etc/passwd").ok().and_then(|text| {
        let uid = rustix::process::getuid().as_raw().to_string();
        user_of(&text, &uid).map(str::to_owned)
    });
    let from_environment = || std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok();
    reviewer_name(&from_system.or_else(from_environment).unwrap_or_default())
}

fn user_of<'a>(passwd: &'a str, uid: &str) -> Option<&'a str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then_some(name)
    })
}

fn reviewer_name(user: &str) -> String {
    let name: String =
        user.chars().map(|c| if c.is_ascii_alphanumeric() || "._-@+".contains(c) { c } else { '_' }).take(50).collect();
    if keys::check_name(&name).is_ok() {
        name
    } else if name.is_empty() {
        "reviewer".into()
    } else {
        format!("{name}-reviewer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_signs_in_once_and_not_after_ten_minutes() {
        let dir = tempfile::tempdir().unwrap();
        let stored = super::super::stored::Stored::in_directory(dir.path()).unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let code = create(stored.keys(), now).unwrap();
        let name = redeem(&stored, &code, now + LIFE - SignedDuration::from_secs(1)).unwrap().name;
        assert_eq!(name, local_reviewer());
        redeem(&stored, &code, now).unwrap_err();
        let late = create(stored.keys(), now).unwrap();
        redeem(&stored, &late, now + LIFE).unwrap_err();
        for wrong in ["", "csc_", "csc_nothing", &secret::generate(PREFIX).unwrap(), &"x".repeat(100_000)] {
            assert_eq!(look_up(&stored, wrong).unwrap_err().kind, ErrorKind::Unauthorized);
            assert_eq!(redeem(&stored, wrong, now).unwrap_err().kind, ErrorKind::Unauthorized);
        }
        look_up(&stored, &late).unwrap();
    }

    #[test]
    fn the_reviewer_is_never_mistaken_for_an_agent() {
        assert_eq!(reviewer_name("alice"), "alice");
        assert_eq!(reviewer_name("local-agent"), "local-agent-reviewer");
        assert_eq!(reviewer_name("System"), "System-reviewer");
        assert_eq!(reviewer_name(""), "reviewer");
        assert_eq!(reviewer_name("jürgen m"), "j_rgen_m");
        for odd in ["local-agent", "", "\u{202e}x", &"x".repeat(300)] {
            keys::check_name(&reviewer_name(odd)).unwrap();
        }
        assert_eq!(user_of("root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh", "1000"), Some("alice"));
        assert_eq!(user_of("bad\nroot:x", "0"), None);
    }

    #[test]
    fn links_lead_to_where_a_browser_can_go() {
        let mut config = Config::default();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(link(&config, at("127.0.0.1:8123"), "c"), "http://127.0.0.1:8123/#code=c");
        assert_eq!(link(&config, at("0.0.0.0:80"), "c"), "http://127.0.0.1:80/#code=c");
        assert_eq!(link(&config, at("[::]:80"), "c"), "http://[::1]:80/#code=c");
        config.public_url = Some("https://gw.example/".into());
        assert_eq!(link(&config, at("127.0.0.1:80"), "c"), "https://gw.example/#code=c");
    }
}
