//! Seals texts that the gateway stores or hands out, so that nobody else can read or change them.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use countersign_protocol::{ErrorKind, McpError};

/// The number of bytes of a key.
pub const KEY_LEN: usize = 32;
/// The maximum number of bytes of a key file.
const MAX_KEY_FILE_LEN: u64 = 4096;

/// Seals and opens texts with one key.
pub struct Sealer {
    key: LessSafeKey,
}

impl Sealer {
    /// Returns `None` for a key that the cipher refuses.
    pub fn new(key: &[u8; KEY_LEN]) -> Option<Self> {
        UnboundKey::new(&CHACHA20_POLY1305, key).ok().map(|key| Self { key: LessSafeKey::new(key) })
    }

    /// Seals a text as base64url. Only the same `context` opens it.
    ///
    /// # Errors
    /// `INTERNAL_ERROR` if the operating system provides no random numbers.
    pub fn seal(&self, context: &[u8], text: &str) -> Result<String, McpError> {
        let unavailable = || McpError::new(ErrorKind::Internal, "no source of randomness");
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|_| unavailable())?;
        let mut sealed = text.as_bytes().to_vec();
        let nonce_for_key = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce_for_key, Aad::from(context), &mut sealed).map_err(|_| unavailable())?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// Opens a text that [`Self::seal`] returned. `None` for any other text or context.
    pub fn open(&self, context: &[u8], text: &str) -> Option<String> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let plaintext = self.key.open_in_place(nonce, Aad::from(context), &mut sealed).ok()?;
        String::from_utf8(plaintext.to_vec()).ok()
    }
}

/// Reads a key of 32 bytes as base64 from a file that only its owner can read.
///
/// # Errors
/// The errors of the file system; `InvalidData` if others can read the file, or if it holds no key.
pub fn read_key_file(path: &Path) -> io::Result<[u8; KEY_LEN]> {
    let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
    let metadata = fs::metadata(path)?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(invalid(format!("others can read {}; run `chmod 600` on it", path.display())));
    }
    let text = if metadata.len() <= MAX_KEY_FILE_LEN { fs::read_to_string(path)? } else { String::new() };
    parse_key(&text).ok_or_else(|| {
        invalid(format!("{} holds no key of 32 bytes as base64; `openssl rand -base64 32` makes one", path.display()))
    })
}

/// Reads a key of 32 bytes as base64. `None` for any other text.
pub fn parse_key(text: &str) -> Option<[u8; KEY_LEN]> {
    STANDARD.decode(text.trim()).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_text_opens_with_same_key_and_context() {
        let sealer = Sealer::new(&[7; KEY_LEN]).unwrap();
        let sealed = sealer.seal(b"a", "secret \u{e4}").unwrap();
        assert_ne!(sealer.seal(b"a", "secret \u{e4}").unwrap(), sealed, "a nonce is used once");
        assert_eq!(sealer.open(b"a", &sealed).as_deref(), Some("secret \u{e4}"));
        assert_eq!(sealer.open(b"b", &sealed), None);
        assert_eq!(Sealer::new(&[8; KEY_LEN]).unwrap().open(b"a", &sealed), None);
        for index in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
            assert_eq!(sealer.open(b"a", std::str::from_utf8(&changed).unwrap()), None, "byte {index}");
        }
        for text in ["", "AAAA", &sealed[..10], &format!("{sealed}A")] {
            assert_eq!(sealer.open(b"a", text), None);
        }
    }

    #[test]
    fn key_file_must_be_private_and_hold_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write(&format!("{}\n", STANDARD.encode([5; KEY_LEN])), 0o600);
        assert_eq!(read_key_file(&path).unwrap(), [5; KEY_LEN]);
        write(&STANDARD.encode([5; KEY_LEN]), 0o640);
        assert!(read_key_file(&path).unwrap_err().to_string().contains("chmod 600"));
        for wrong in ["", "short", &STANDARD.encode([5; 31]), &"A".repeat(5000)] {
            write(wrong, 0o600);
            assert!(read_key_file(&path).unwrap_err().to_string().contains("holds no key"), "{wrong}");
        }
    }
}
