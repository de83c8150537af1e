//! Messages about feed events to other systems: their subject ([`event`]), text ([`summary`], [`template`]), format
//! ([`format`]) and signature ([`sign`]).
//!
//! This module is pure; `countersign_webhooks` stores and sends. Messages never contain the arguments of a call or a
//! diff, and text written by others is escaped for its destination.

pub mod event;
pub mod format;
pub mod sign;
pub mod summary;
pub mod template;
