//! What an event of the feed says to other machines: what it is about ([`event`]), in which words ([`summary`], [`template`]),
//! in whose format ([`format`]), and how it is signed ([`sign`]).
//!
//! Pure: `countersign_webhooks` stores and sends. What goes out never has a call's arguments or a diff, and what somebody
//! wrote is escaped for where it goes.

pub mod event;
pub mod format;
pub mod sign;
pub mod summary;
pub mod template;
