//! `requestState` of parked calls: sealed, so that a client can neither read nor change nor move it
//! (2026-07-28/basic/patterns/mrtr, "Server Requirements").

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// What a sealed text names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub call: [u8; 16],
    /// Each is good once.
    pub ticket: u64,
    /// Milliseconds since the sealer was made.
    pub expires: u64,
}

/// Why a text cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It is of another run of the gateway: what it named is gone.
    OtherRun,
    /// Changed, made up, or brought with another request or by somebody else.
    Invalid,
    /// No random numbers are to be had.
    Unavailable,
}

impl Broken {
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::OtherRun => "the gateway has been restarted, and the outcome of the call is unknown",
            Self::Invalid => "it is not valid for this client and this request",
            Self::Unavailable => "the gateway cannot check it right now",
        }
    }
}

/// What a claim is bound to, beside its own content: whoever brings it must bring the same.
pub type Binding = [u8; 32];

const RUN_LEN: usize = 8;
const CLAIM_LEN: usize = 32;

/// Seals and opens with a key that only this process has.
pub struct Sealer {
    key: Option<LessSafeKey>,
    /// Tells texts of an earlier run from those that somebody changed. No secret.
    run: [u8; RUN_LEN],
}

impl Default for Sealer {
    fn default() -> Self {
        Self::new()
    }
}

impl Sealer {
    #[must_use]
    pub fn new() -> Self {
        let (mut key, mut run) = ([0; 32], [0; RUN_LEN]);
        let random = getrandom::fill(&mut key).and_then(|()| getrandom::fill(&mut run));
        let key = random.ok().and_then(|()| UnboundKey::new(&CHACHA20_POLY1305, &key).ok()).map(LessSafeKey::new);
        Self { key, run }
    }

    /// # Errors
    /// [`Broken::Unavailable`]
    pub fn seal(&self, claim: &Claim, binding: &Binding) -> Result<String, Broken> {
        let key = self.key.as_ref().ok_or(Broken::Unavailable)?;
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|_| Broken::Unavailable)?;
        let mut sealed = Vec::with_capacity(CLAIM_LEN + CHACHA20_POLY1305.tag_len());
        sealed.extend_from_slice(&claim.call);
        sealed.extend_from_slice(&claim.ticket.to_be_bytes());
        sealed.extend_from_slice(&claim.expires.to_be_bytes());
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(binding), &mut sealed)
            .map_err(|_| Broken::Unavailable)?;
        Ok(URL_SAFE_NO_PAD.encode([&self.run[..], &nonce[..], &sealed[..]].concat()))
    }

    /// # Errors
    /// See [`Broken`].
    pub fn open(&self, text: &str, binding: &Binding) -> Result<Claim, Broken> {
        const SEALED: usize = CLAIM_LEN + 16;
        // Longer texts are none of ours: they are not even decoded.
        if text.len() > (RUN_LEN + NONCE_LEN + SEALED).div_ceil(3) * 4 {
            return Err(Broken::Invalid);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| Broken::Invalid)?;
        let (run, rest) = bytes.split_at_checked(RUN_LEN).ok_or(Broken::Invalid)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN).ok_or(Broken::Invalid)?;
        if sealed.len() != SEALED {
            return Err(Broken::Invalid);
        }
        if run != self.run {
            return Err(Broken::OtherRun);
        }
        let key = self.key.as_ref().ok_or(Broken::Unavailable)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Broken::Invalid)?;
        let mut sealed = sealed.to_vec();
        let claim = key.open_in_place(nonce, Aad::from(binding), &mut sealed).map_err(|_| Broken::Invalid)?;
        let (call, rest) = claim.split_first_chunk::<16>().ok_or(Broken::Invalid)?;
        let (ticket, rest) = rest.split_first_chunk::<8>().ok_or(Broken::Invalid)?;
        let (expires, _) = rest.split_first_chunk::<8>().ok_or(Broken::Invalid)?;
        Ok(Claim { call: *call, ticket: u64::from_be_bytes(*ticket), expires: u64::from_be_bytes(*expires) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: Claim = Claim { call: [7; 16], ticket: 3, expires: 99 };

    #[test]
    fn what_was_sealed_opens_for_the_same_request_only() {
        let sealer = Sealer::new();
        let text = sealer.seal(&CLAIM, &[1; 32]).unwrap();
        assert_eq!(sealer.open(&text, &[1; 32]), Ok(CLAIM));
        assert_eq!(sealer.open(&text, &[2; 32]), Err(Broken::Invalid));
        assert_ne!(sealer.seal(&CLAIM, &[1; 32]).unwrap(), text, "a nonce is used once");
        assert_eq!(Sealer::new().open(&text, &[1; 32]), Err(Broken::OtherRun));
    }

    #[test]
    fn no_change_goes_unseen() {
        let sealer = Sealer::new();
        let text = sealer.seal(&CLAIM, &[1; 32]).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(sealer.open(&URL_SAFE_NO_PAD.encode(changed), &[1; 32]).is_err(), "byte {at}");
        }
        for text in ["", "x", "A", &text[1..], &text[..text.len() - 1], &format!("{text}-TAMPERED"), &text.repeat(9999)]
        {
            assert_eq!(sealer.open(text, &[1; 32]).err().map(|e| e == Broken::Unavailable), Some(false));
        }
    }
}
