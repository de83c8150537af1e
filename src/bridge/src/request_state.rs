//! `requestState`, which clients carry from one request to the next (2026-07-28/basic/patterns/mrtr, "Server
//! Requirements"): of parked calls, and of stateless upstreams, which get back what they gave, byte for byte.
//!
//! It is sealed to the principal, the server, the method, what is asked for and the arguments. Nobody else can bring it, and
//! it fits no other request. The key lies in the data directory, so that the state of an upstream outlives the gateway.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use countersign_protocol::{ErrorKind, McpError};

/// The file in the data directory.
const KEY_FILE: &str = "state.key";
const KEY_LEN: usize = 32;

/// A hash of everything that must be the same in the request that brings a state back.
pub type Binding = [u8; 32];

/// The origin of a state, which its text begins with.
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
#[must_use]
pub fn refused(why: &str) -> McpError {
    let message = format!("this requestState cannot be used: {why}; the call was not made again");
    McpError::new(ErrorKind::InvalidParams, message).with("member", "requestState")
}

/// Seals and opens states.
pub struct StateSealer {
    key: LessSafeKey,
}

impl StateSealer {
    /// Returns `None` for a key that the cipher refuses.
    #[must_use]
    pub fn new(key: [u8; KEY_LEN]) -> Option<Self> {
        UnboundKey::new(&CHACHA20_POLY1305, &key).ok().map(|key| Self { key: LessSafeKey::new(key) })
    }

    /// Seals a text.
    ///
    /// # Errors
    /// `INTERNAL_ERROR` if the operating system gives no random numbers.
    pub fn seal(&self, kind: StateKind, state: &str, binding: &Binding) -> Result<String, McpError> {
        let unavailable = "the gateway cannot seal the state of the call: the system gives it no random numbers";
        let unavailable = || McpError::new(ErrorKind::Internal, unavailable);
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|_| unavailable())?;
        let mut sealed = state.as_bytes().to_vec();
        let tag = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from([kind.prefix().as_bytes(), binding].concat());
        self.key.seal_in_place_append_tag(tag, aad, &mut sealed).map_err(|_| unavailable())?;
        Ok(format!("{}{}", kind.prefix(), URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat())))
    }

    /// Opens what [`Self::seal`] returned.
    ///
    /// # Errors
    /// `-32602` for any other text, and for one that was brought with another request or by somebody else.
    pub fn open(&self, kind: StateKind, text: &str, binding: &Binding) -> Result<String, McpError> {
        let open = || {
            let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(kind.prefix())?).ok()?;
            let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut sealed = sealed.to_vec();
            let aad = Aad::from([kind.prefix().as_bytes(), binding].concat());
            String::from_utf8(self.key.open_in_place(nonce, aad, &mut sealed).ok()?.to_vec()).ok()
        };
        open().ok_or_else(|| refused("it is not valid for this client and this request"))
    }
}

/// The key of a data directory, which is made when there is none: nobody but its gateway knows it.
///
/// # Errors
/// Those of the file system; one where the file holds no key.
pub fn key_of(data: &Path) -> io::Result<[u8; KEY_LEN]> {
    let path = data.join(KEY_FILE);
    let read = |mut file: fs::File| {
        let mut key = Vec::new();
        file.read_to_end(&mut key).map(|_| key)
    };
    let key = match fs::File::open(&path) {
        Ok(file) => read(file)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(data, &path)?,
        Err(error) => return Err(error),
    };
    key.try_into().map_err(|_| {
        let path = path.display();
        let told = format!("{path} holds no key; delete it, and the gateway makes a new one");
        io::Error::new(io::ErrorKind::InvalidData, told)
    })
}

/// Whoever holds the data directory's lock is alone; the file is whole when it gets its name.
fn make(data: &Path, path: &Path) -> io::Result<Vec<u8>> {
    let mut key = vec![0; KEY_LEN];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let new = data.join("state.key.new");
    let mut file = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&key)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    fs::File::open(data)?.sync_all()?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn open(data: &Path) -> StateSealer {
        StateSealer::new(key_of(data).unwrap()).unwrap()
    }

    #[test]
    fn sealed_state_opens_for_same_request_also_after_restart() {
        let dir = tempfile::tempdir().unwrap();
        let carrier = open(dir.path());
        let state = r#""s\u0041/+=""#;
        let text = carrier.seal(StateKind::Upstream, state, &[1; 32]).unwrap();
        assert_ne!(carrier.seal(StateKind::Upstream, state, &[1; 32]).unwrap(), text, "a nonce is used once");
        let again = open(dir.path());
        let opened = |kind, text: &str, binding| again.open(kind, text, &[binding; 32]).ok();
        assert_eq!(opened(StateKind::Upstream, &text, 1).as_deref(), Some(state));
        assert_eq!(opened(StateKind::Upstream, &text, 2), None);
        assert_eq!(opened(StateKind::ParkedCall, &text, 1), None);
        assert_eq!(opened(StateKind::ParkedCall, &text.replacen("cs1", "cp1", 1), 1), None, "the kind is sealed");
        let mode = fs::metadata(dir.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = open(tempfile::tempdir().unwrap().path());
        assert!(other.open(StateKind::Upstream, &text, &[1; 32]).is_err());
        for text in ["", "cs1.", "cs1.AAAA", "s", &text[4..], &text[..text.len() - 2], &format!("{text}A")] {
            assert_eq!(opened(StateKind::Upstream, text, 1), None, "{text}");
        }
    }

    #[test]
    fn changed_state_is_refused() {
        let carrier = StateSealer::new([7; 32]).unwrap();
        let text = carrier.seal(StateKind::ParkedCall, "state", &[1; 32]).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&text[4..]).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let changed = format!("cp1.{}", URL_SAFE_NO_PAD.encode(changed));
            assert!(carrier.open(StateKind::ParkedCall, &changed, &[1; 32]).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_file_that_holds_no_key_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(KEY_FILE), "short").unwrap();
        assert!(key_of(dir.path()).err().unwrap().to_string().contains("holds no key"));
    }
}
