//! `requestState` of stateless upstreams on its way through their clients: sealed to the principal, the server, the method,
//! what is asked for and the arguments, so that nobody else can bring it and it fits no other request
//! (2026-07-28/basic/patterns/mrtr, "Server Requirements"). The upstream gets back what it gave, byte for byte.
//!
//! The key lies in the data directory, so that a state outlives the gateway as it does without one. How long it is good for
//! is the upstream's affair.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::seal::Binding;

/// The file in the data directory.
const FILE: &str = "state.key";
const KEY_LEN: usize = 32;
/// What a sealed state begins with: the form of what follows.
const FORM: &str = "cs1.";

/// See the module's page.
pub struct Carrier {
    key: LessSafeKey,
}

impl Carrier {
    /// Returns `None` for a key that the cipher refuses.
    #[must_use]
    pub fn new(key: [u8; KEY_LEN]) -> Option<Self> {
        UnboundKey::new(&CHACHA20_POLY1305, &key).ok().map(|key| Self { key: LessSafeKey::new(key) })
    }

    /// `state` is JSON text; so is what it becomes. `None` where no random numbers are to be had.
    #[must_use]
    pub fn seal(&self, state: &str, binding: &Binding) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).ok()?;
        let mut sealed = state.as_bytes().to_vec();
        let tag = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(tag, Aad::from(binding), &mut sealed).ok()?;
        Some(format!("\"{FORM}{}\"", URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat())))
    }

    /// The state's JSON text; `None` for a text that is none of ours, or was brought with another request or by somebody
    /// else.
    #[must_use]
    pub fn open_sealed(&self, text: &str, binding: &Binding) -> Option<String> {
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(FORM)?).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let state = self.key.open_in_place(nonce, Aad::from(binding), &mut sealed).ok()?;
        String::from_utf8(state.to_vec()).ok()
    }
}

/// The key of a data directory, which is made when there is none: nobody but its gateway knows it.
///
/// # Errors
/// Those of the file system; one where the file holds no key.
pub fn key_of(data: &Path) -> io::Result<[u8; KEY_LEN]> {
    let path = data.join(FILE);
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

    fn open(data: &Path) -> Carrier {
        Carrier::new(key_of(data).unwrap()).unwrap()
    }

    #[test]
    fn what_was_sealed_opens_for_the_same_request_only_and_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let carrier = open(dir.path());
        let state = r#""s\u0041/+=""#;
        let sealed = carrier.seal(state, &[1; 32]).unwrap();
        let text: String = serde_json::from_str(&sealed).unwrap();
        assert_ne!(carrier.seal(state, &[1; 32]).unwrap(), sealed, "a nonce is used once");
        assert_eq!(carrier.open_sealed(&text, &[2; 32]), None);
        let again = open(dir.path());
        assert_eq!(again.open_sealed(&text, &[1; 32]).as_deref(), Some(state));
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = open(tempfile::tempdir().unwrap().path());
        assert_eq!(other.open_sealed(&text, &[1; 32]), None);
        for text in ["", "cs1.", "cs1.AAAA", "s", &text[4..], &text[..text.len() - 2], &format!("{text}A")] {
            assert_eq!(again.open_sealed(text, &[1; 32]), None, "{text}");
        }
    }

    #[test]
    fn a_file_that_holds_no_key_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "short").unwrap();
        assert!(key_of(dir.path()).err().unwrap().to_string().contains("holds no key"));
    }
}
