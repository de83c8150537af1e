//! Creates and redeems one-time codes that sign a person in to the dashboard. A link carries the code in its fragment.
//!
//! Codes are created by `countersign open` (another process), by a gateway that starts at a terminal, and by a sign-in
//! at the identity provider. Anybody who can write the data directory can create one, too. A code is stored as a hash,
//! works once, and expires after at most ten minutes. It is never logged. The code of a sign-in at the identity provider works only
//! in the browser that came back from there, so that a link cannot sign anybody in as somebody else.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    dashboard_sign_ins::SignInSubject,
    keys,
    stored_credentials::{StoredCredentials, report_unavailable},
    tokens::oidc::SIGN_IN_COOKIE,
};
use countersign_domain::{
    changes::digest::hex,
    principal::{Principal, Role, SecretHash},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::secret;
use countersign_store::{
    keys::{CodeOutcome, Credentials, StoredCode},
    people::ProviderSession,
};

/// The prefix of every code.
pub const CODE_PREFIX: &str = "csc_";
/// The time within which a code must be used.
pub const CODE_LIFETIME: SignedDuration = SignedDuration::from_mins(10);
/// The time within which a browser must use the code that it got after a sign-in at the identity provider.
pub const SESSION_CODE_LIFETIME: SignedDuration = SignedDuration::from_mins(1);

/// A code that works only in one browser.
#[derive(Debug, PartialEq, Eq)]
pub struct BrowserCode {
    pub code: String,
    /// The value of the browser's cookie [`cookie_name`].
    pub secret: String,
}

/// Creates a code and stores its hash. Blocks for a durable write.
///
/// # Errors
/// `STORE_UNAVAILABLE`; `INTERNAL_ERROR` if there is no source of randomness.
pub fn create(credentials: &dyn Credentials, now: Timestamp) -> Result<String, McpError> {
    let code = secret::generate(CODE_PREFIX)?;
    store_code(credentials, &stored_hash(&code, None), None, now, CODE_LIFETIME)?;
    Ok(code)
}

/// Creates a code that signs in the person of a session at the identity provider, in the browser that gets its secret.
///
/// # Errors
/// The same as [`create`].
pub fn create_for_session(
    credentials: &dyn Credentials,
    session: &ProviderSession,
    now: Timestamp,
) -> Result<BrowserCode, McpError> {
    let code = BrowserCode { code: secret::generate(CODE_PREFIX)?, secret: secret::generate("")? };
    let hash = stored_hash(&code.code, Some(&code.secret));
    store_code(credentials, &hash, Some(session), now, SESSION_CODE_LIFETIME)?;
    Ok(code)
}

fn store_code(
    credentials: &dyn Credentials,
    hash: &SecretHash,
    session: Option<&ProviderSession>,
    now: Timestamp,
    lifetime: SignedDuration,
) -> Result<(), McpError> {
    let expires_at = now.checked_add(lifetime).map_err(|_| McpError::new(ErrorKind::Internal, "the clock is off"))?;
    credentials.put_code(hash, session, now, expires_at).map_err(|error| {
        tracing::error!(%error, "cannot store a sign-in code");
        error.to_mcp()
    })
}

/// Returns the name of the cookie with the browser's secret for a code. Each code has a cookie of its own, so that several tabs can
/// sign in at the same time.
pub fn cookie_name(code: &str) -> String {
    format!("{SIGN_IN_COOKIE}_{}", hex(&secret::hash(code.as_bytes())[..8]))
}

/// Returns the hash under which a code is stored, together with the secret of its browser if it has one.
fn stored_hash(code: &str, browser_secret: Option<&str>) -> SecretHash {
    secret::hash([code, browser_secret.unwrap_or_default()].concat().as_bytes())
}

/// Returns the principal of a code that can still be used, without using it up. This costs only reads, so that wrong codes
/// cause no durable writes. The timing reveals nothing about a guess, because hashes are looked up. `browser_secret` is the
/// value of the cookie [`cookie_name`].
///
/// # Errors
/// The same as [`redeem`].
pub fn find_principal(
    store: &StoredCredentials,
    code: &str,
    browser_secret: Option<&str>,
    now: Timestamp,
) -> Result<Arc<Principal>, McpError> {
    if !secret::is_well_formed(CODE_PREFIX, code) {
        return Err(log_refusal(CodeOutcome::Unknown));
    }
    let code = read_code(store, &stored_hash(code, browser_secret))?;
    if code.is_used {
        return Err(log_refusal(CodeOutcome::AlreadyUsed));
    }
    if code.expires_at <= now {
        return Err(log_refusal(CodeOutcome::Expired));
    }
    Ok(read_subject(store, code)?.principal)
}

/// Redeems a code. Returns who signs in with it. `browser_secret` is the value of the cookie [`cookie_name`]. Blocks for a
/// durable write.
///
/// # Errors
/// `UNAUTHORIZED` for a code that is unknown, used or expired, that belongs to another browser, or whose person no longer has a
/// role, where only the log says which; `STORE_UNAVAILABLE`.
pub fn redeem(
    store: &StoredCredentials,
    code: &str,
    browser_secret: Option<&str>,
    now: Timestamp,
) -> Result<SignInSubject, McpError> {
    let hash = stored_hash(code, browser_secret);
    let outcome = if secret::is_well_formed(CODE_PREFIX, code) {
        store.writer().take_code(&hash, now).map_err(report_unavailable)?
    } else {
        CodeOutcome::Unknown
    };
    if outcome != CodeOutcome::Accepted {
        return Err(log_refusal(outcome));
    }
    read_subject(store, read_code(store, &hash)?)
}

fn read_code(store: &StoredCredentials, hash: &SecretHash) -> Result<StoredCode, McpError> {
    let code = store.reader().code(hash).map_err(report_unavailable)?;
    code.ok_or_else(|| log_refusal(CodeOutcome::Unknown))
}

/// Returns who signs in with a code.
fn read_subject(store: &StoredCredentials, code: StoredCode) -> Result<SignInSubject, McpError> {
    let Some(session) = code.session else {
        let principal = Arc::new(Principal::new(local_reviewer(), Role::Reviewer));
        return Ok(SignInSubject { principal, key: None, session: None });
    };
    let person = store.reader().person(&session.person()).map_err(report_unavailable)?;
    let mut principal = person.and_then(|person| person.principal()).ok_or_else(|| {
        let person = session.person();
        tracing::warn!(person, "a sign-in code was refused, because its person no longer has a role");
        refusal_error()
    })?;
    session.add_authentication_to(&mut principal);
    Ok(SignInSubject { principal: Arc::new(principal), key: None, session: Some(session) })
}

/// Logs why a code is refused, and returns the error.
fn log_refusal(outcome: CodeOutcome) -> McpError {
    // Guesses may come thousands of times per second. Used and expired codes are as rare as the codes that were
    // created.
    if outcome == CodeOutcome::Unknown {
        tracing::debug!(?outcome, "a sign-in code was refused");
    } else {
        tracing::warn!(?outcome, "a sign-in code was refused");
    }
    refusal_error()
}

/// Returns the error for a refused code, which does not say why.
fn refusal_error() -> McpError {
    let text = "the sign-in code is unknown, used or too old; `countersign open` creates a new one";
    McpError::new(ErrorKind::Unauthorized, text)
}

/// Returns the name of the local reviewer: that of the operating system's user, changed to follow the rules for names.
pub fn local_reviewer() -> String {
    let from_system = std::fs::read_to_string("/etc/passwd").ok().and_then(|text| {
        let uid = rustix::process::getuid().as_raw().to_string();
        find_user_name(&text, &uid).map(str::to_owned)
    });
    let from_environment = || std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok();
    reviewer_name(&from_system.or_else(from_environment).unwrap_or_default())
}

fn find_user_name<'a>(passwd: &'a str, uid: &str) -> Option<&'a str> {
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
    use crate::fixtures;

    #[test]
    fn code_works_once_and_expires_after_ten_minutes() {
        let dir = tempfile::tempdir().unwrap();
        let stored = StoredCredentials::in_directory(dir.path()).unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let code = create(stored.writer(), now).unwrap();
        let last_second = now + CODE_LIFETIME - SignedDuration::from_secs(1);
        let name = redeem(&stored, &code, None, last_second).unwrap().principal.name.clone();
        assert_eq!(name, local_reviewer());
        redeem(&stored, &code, None, now).unwrap_err();
        find_principal(&stored, &code, None, now).unwrap_err();
        let late = create(stored.writer(), now).unwrap();
        redeem(&stored, &late, None, now + CODE_LIFETIME).unwrap_err();
        find_principal(&stored, &late, None, now + CODE_LIFETIME).unwrap_err();
        for wrong in ["", "csc_", "csc_nothing", &secret::generate(CODE_PREFIX).unwrap(), &"x".repeat(100_000)] {
            assert_eq!(find_principal(&stored, wrong, None, now).unwrap_err().kind, ErrorKind::Unauthorized);
            assert_eq!(redeem(&stored, wrong, None, now).unwrap_err().kind, ErrorKind::Unauthorized);
        }
        find_principal(&stored, &late, None, last_second).unwrap();
    }

    #[test]
    fn code_of_a_session_works_only_in_its_browser() {
        let dir = tempfile::tempdir().unwrap();
        let stored = StoredCredentials::in_directory(dir.path()).unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let session = fixtures::session("ada", now + SignedDuration::from_hours(1));
        let person = fixtures::person(&session, now);
        stored.writer().put_person(&person).unwrap();
        let [own, other] = [(); 2].map(|()| create_for_session(stored.writer(), &session, now).unwrap());
        assert_ne!(cookie_name(&own.code), cookie_name(&other.code), "two tabs");
        for secret in [None, Some(""), Some(other.secret.as_str())] {
            assert_eq!(find_principal(&stored, &own.code, secret, now).unwrap_err().kind, ErrorKind::Unauthorized);
            assert_eq!(redeem(&stored, &own.code, secret, now).unwrap_err().kind, ErrorKind::Unauthorized);
        }
        for code in [own, other] {
            assert_eq!(find_principal(&stored, &code.code, Some(&code.secret), now).unwrap().name, person.name);
            let SignInSubject { principal, session, .. } =
                redeem(&stored, &code.code, Some(&code.secret), now).unwrap();
            assert_eq!((principal.name.clone(), session.is_some()), (person.name.clone(), true));
        }
    }

    #[test]
    fn local_reviewer_name_differs_from_agent_name() {
        assert_eq!(reviewer_name("alice"), "alice");
        assert_eq!(reviewer_name("local-agent"), "local-agent-reviewer");
        assert_eq!(reviewer_name("System"), "System-reviewer");
        assert_eq!(reviewer_name(""), "reviewer");
        assert_eq!(reviewer_name("jürgen m"), "j_rgen_m");
        for odd in ["local-agent", "", "\u{202e}x", &"x".repeat(300)] {
            keys::check_name(&reviewer_name(odd)).unwrap();
        }
        assert_eq!(find_user_name("root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh", "1000"), Some("alice"));
        assert_eq!(find_user_name("bad\nroot:x", "0"), None);
    }
}
