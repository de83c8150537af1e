//! The steps of OAuth 2.1 as MCP clients take them (2026-07-28/basic/authorization, 2025-11-25/basic/authorization).
//!
//! This module keeps no state, knows no account, and treats every answer as hostile. [`AllowedAddresses`] decides where
//! a request may go. The order of the steps: `challenge`, `discovery`, `registration`, `authorization` or an
//! `assertion`, `token`, and `dpop` for each request with a bound token.

mod allowed_addresses;
pub mod assertion;
pub mod authorization;
pub mod challenge;
pub mod discovery;
pub mod dpop;
pub mod enterprise;
mod http;
mod jws;
pub mod registration;
pub mod token;

pub use allowed_addresses::AllowedAddresses;

/// The maximum number of scopes that are read from one text or list.
pub const MAX_SCOPES: usize = 200;
/// The maximum number of bytes of one scope.
const MAX_SCOPE_LEN: usize = 256;

/// The reason why a step failed. No text contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OAuthError {
    /// The authorization server, or the MCP server that names it, was not reached, did not answer completely in time,
    /// or answered that it cannot answer now (429, 5xx).
    #[error("an OAuth request failed: {reason}")]
    Unavailable {
        /// The URL of the request, and what happened.
        reason: String,
        /// `true` if the request was certainly not processed: not a byte of it was sent, or the answer says so.
        is_unprocessed: bool,
    },
    /// The step cannot succeed: the answer is invalid, or the client's key or registration does not fit.
    #[error("{0}")]
    Unusable(String),
    /// The authorization server refused with this error code (RFC 6749, sections 4.1.2.1 and 5.2).
    #[error("the authorization server refused with {0:?}")]
    Refused(String),
}

impl OAuthError {
    /// Creates the error of a step that cannot succeed, for this reason.
    fn unusable(reason: impl ToString) -> Self {
        Self::Unusable(reason.to_string())
    }

    /// Returns `true` if the error says nothing about the grant of the request, which can be sent again.
    pub fn permits_repetition(&self) -> bool {
        match self {
            Self::Unavailable { is_unprocessed, .. } => *is_unprocessed,
            Self::Refused(code) => matches!(code.as_str(), "server_error" | "temporarily_unavailable" | "slow_down"),
            Self::Unusable(_) => false,
        }
    }
}

/// Returns the valid scopes among these texts (RFC 6749, section 3.3), each once.
fn read_scopes<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let is_valid = |text: &&str| {
        let is_scope_byte = |byte| matches!(byte, b'!' | b'#'..=b'[' | b']'..=b'~');
        (1..=MAX_SCOPE_LEN).contains(&text.len()) && text.bytes().all(is_scope_byte)
    };
    let mut scopes: Vec<String> = Vec::new();
    for text in texts.filter(is_valid) {
        if scopes.len() < MAX_SCOPES && !scopes.iter().any(|scope| scope == text) {
            scopes.push(text.to_owned());
        }
    }
    scopes
}

/// Joins lists of scopes, each scope once.
pub fn join_scopes<const N: usize>(lists: [&[String]; N]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for scope in lists.into_iter().flatten() {
        if !all.contains(scope) {
            all.push(scope.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests;
