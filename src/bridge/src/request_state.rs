//! `requestState`, which clients carry from one request to the next (2026-07-28/basic/patterns/mrtr, "Server
//! Requirements"). It refers to a parked call, or contains the state of a stateless upstream, which gets it back byte
//! for byte.
//!
//! A state is sealed to the principal, the upstream, the method, the requested item and the arguments, so no other
//! principal and no other request can use it, and it expires after an hour. The key is stored in the data directory, so
//! that the state of an upstream survives a restart of the gateway.

use std::{fs, io, path::Path};

use jiff::Timestamp;

use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::{
    files::replace_file,
    sealing::{KEY_LEN, Sealer},
};

/// The name of the key file in the data directory.
const KEY_FILE: &str = "state.key";

/// The time for which a state can be used. A person may need it to fill in a form or to sign in elsewhere. Questions to
/// handshake-era clients wait for a shorter time.
const LIFETIME_SECONDS: i64 = 3600;

/// A hash of everything that must be equal in the request that brings a state back.
pub type Binding = [u8; 32];

/// The origin of a state. The text of a state begins with its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    ParkedCall,
    Upstream,
}

impl StateKind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::ParkedCall => "cp1.",
            Self::Upstream => "cs1.",
        }
    }
}

/// Returns the error for a state that cannot be used.
pub fn invalid_state_error(reason: &str) -> McpError {
    let message = format!("this requestState cannot be used: {reason}; the call was not made again");
    McpError::new(ErrorKind::InvalidParams, message).with("member", "requestState")
}

/// Seals and opens states.
pub struct StateSealer(Sealer);

impl StateSealer {
    /// Returns `None` for a key that the cipher refuses.
    pub fn new(key: [u8; KEY_LEN]) -> Option<Self> {
        Sealer::new(&key).map(Self)
    }

    /// Seals the text of a state.
    ///
    /// # Errors
    /// `INTERNAL_ERROR` if the operating system provides no random numbers.
    pub fn seal(&self, kind: StateKind, state: &str, binding: &Binding) -> Result<String, McpError> {
        self.seal_until(Timestamp::now().as_second().saturating_add(LIFETIME_SECONDS), kind, state, binding)
    }

    /// Seals the text of a state that expires at this time, in seconds since the epoch.
    fn seal_until(&self, expiry: i64, kind: StateKind, state: &str, binding: &Binding) -> Result<String, McpError> {
        let sealed = self.0.seal(&context(kind, binding), &format!("{expiry} {state}"))?;
        Ok(format!("{}{sealed}", kind.prefix()))
    }

    /// Opens a text that [`Self::seal`] returned.
    ///
    /// # Errors
    /// `-32602` for any other text, for a text of another request or another principal, and for one that has expired.
    pub fn open(&self, kind: StateKind, text: &str, binding: &Binding) -> Result<String, McpError> {
        let sealed = text.strip_prefix(kind.prefix());
        let opened = sealed.and_then(|sealed| self.0.open(&context(kind, binding), sealed));
        let parts = opened.as_deref().and_then(|opened| opened.split_once(' '));
        let parts = parts.and_then(|(expiry, state)| Some((expiry.parse::<i64>().ok()?, state)));
        match parts {
            None => Err(invalid_state_error("it is not valid for this principal and this request")),
            Some((expiry, _)) if expiry <= Timestamp::now().as_second() => Err(invalid_state_error("it has expired")),
            Some((_, state)) => Ok(state.to_owned()),
        }
    }
}

/// Returns the context without which a sealed state does not open ([`Sealer::seal`]).
fn context(kind: StateKind, binding: &Binding) -> Vec<u8> {
    [kind.prefix().as_bytes(), binding].concat()
}

/// Returns the key that seals request states, from the data directory. It is created if there is none, and only the
/// directory's gateway knows it. The caller holds the lock of the directory.
///
/// # Errors
/// The errors of the file system; `InvalidData` if the file holds no key.
pub fn load_or_create_key(data: &Path) -> io::Result<[u8; KEY_LEN]> {
    let path = data.join(KEY_FILE);
    let key = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut key = vec![0; KEY_LEN];
            getrandom::fill(&mut key).map_err(io::Error::other)?;
            replace_file(&path, &key, 0o600)?;
            key
        }
        key => key?,
    };
    key.try_into().map_err(|_| {
        let path = path.display();
        let message = format!("{path} holds no key; delete it, and the gateway makes a new one");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn open(data: &Path) -> StateSealer {
        StateSealer::new(load_or_create_key(data).unwrap()).unwrap()
    }

    #[test]
    fn sealed_state_opens_for_same_request_also_after_restart() {
        let dir = tempfile::tempdir().unwrap();
        let sealer = open(dir.path());
        let state = r#""s\u0041/+=""#;
        let text = sealer.seal(StateKind::Upstream, state, &[1; 32]).unwrap();
        assert_ne!(sealer.seal(StateKind::Upstream, state, &[1; 32]).unwrap(), text, "a nonce is used once");
        let reopened = open(dir.path());
        let opened = |kind, text: &str, binding| reopened.open(kind, text, &[binding; 32]).ok();
        assert_eq!(opened(StateKind::Upstream, &text, 1).as_deref(), Some(state));
        assert_eq!(opened(StateKind::Upstream, &text, 2), None);
        assert_eq!(opened(StateKind::ParkedCall, &text, 1), None);
        assert_eq!(opened(StateKind::ParkedCall, &text.replacen("cs1", "cp1", 1), 1), None, "the kind is sealed");
        let mode = fs::metadata(dir.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other_sealer = open(tempfile::tempdir().unwrap().path());
        assert!(other_sealer.open(StateKind::Upstream, &text, &[1; 32]).is_err());
        for text in ["", "cs1.", "cs1.AAAA", "s", &text[4..], &text[..text.len() - 2], &format!("{text}A")] {
            assert_eq!(opened(StateKind::Upstream, text, 1), None, "{text}");
        }
    }

    #[test]
    fn expired_state_is_refused() {
        let sealer = StateSealer::new([7; KEY_LEN]).unwrap();
        let now = Timestamp::now().as_second();
        for (expiry, opens) in [(now + LIFETIME_SECONDS, true), (now, false)] {
            let text = sealer.seal_until(expiry, StateKind::Upstream, "\"a state\"", &[1; 32]).unwrap();
            match sealer.open(StateKind::Upstream, &text, &[1; 32]) {
                Ok(state) => assert!(opens && state == "\"a state\""),
                Err(error) => assert!(!opens && error.message.contains("it has expired"), "{error}"),
            }
        }
    }

    #[test]
    fn key_file_without_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(KEY_FILE), "short").unwrap();
        assert!(load_or_create_key(dir.path()).err().unwrap().to_string().contains("holds no key"));
    }
}
