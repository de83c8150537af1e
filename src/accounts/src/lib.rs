//! The gateway as an OAuth client of servers that require it: accounts of people at these servers, their consent, and
//! their tokens.
//!
//! A token is used only for the account and the server that it was issued for, and is stored sealed. It never appears
//! in a log, an error or an event. What servers and authorization servers say is hostile input.
//!
//! [`oauth`] holds the steps of the protocol and keeps no state. [`Accounts`] keeps the accounts. A person connects one
//! in their browser (`consent`), and its tokens are stored sealed (`sealed_store`, `account_row`). For each request,
//! `authorizer` takes tokens from the `token_refresher` of such an account, or from the `token_requester` of an account
//! that needs no consent.

pub mod oauth;

mod account_row;
mod accounts;
mod authorizer;
mod client;
mod consent;
mod failure;
mod sealed_store;
mod server;
mod token_refresher;
mod token_requester;
mod tokens;

pub use accounts::{AccountStatus, Accounts, CONSENT_COOKIE, server_page};
pub use client::{ChangeListener, IdentityProvider};
pub use consent::{ConnectError, FinishedConsent, MAX_CONSENT_DURATION, StartedConsent};

#[cfg(test)]
mod tests;
