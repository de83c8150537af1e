//! What the gateway decides by: changes and their life, policy, principals, and what an event of the feed says.
//!
//! Pure: no I/O, and the clock is passed in. Nothing here knows who asks over which transport, or where anything is
//! stored.
//!
//! [`changes::machine`] is the state machine of a change, [`changes::audit`] the chain of its trail, [`changes::diff`]
//! what a reviewer sees; [`policy`] says what becomes of a call; [`principal`] who somebody is and may do; [`questions`]
//! what a server may ask a client, and in which words; [`recipes`] how a call of a tool is previewed; [`webhooks`] what of
//! an event goes out.

pub mod changes;
pub mod policy;
pub mod principal;
pub mod questions;
pub mod recipes;
pub mod text;
pub mod webhooks;

/// Names of the providers that are compiled in, whether they are enabled or not.
pub const BUILT_IN_PROVIDERS: [&str; 3] = ["tracker", "docs", "gateway"];
