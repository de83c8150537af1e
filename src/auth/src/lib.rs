//! Who is asking: API keys, sign-in codes, sign-ins of browsers, and which `Host` and `Origin` headers are ours.
//!
//! Never logs or returns a secret, and stores hashes only. Decides who somebody is, never what becomes of a call.
//!
//! [`authenticator`] makes an [`Identity`](countersign_domain::principal::Identity) of a header and an address,
//! [`attempts`] slows guessing down, [`keyring`] says which keys hold now, [`stored`] reads the keys and codes of the data
//! directory, [`dashboard`] knows signed-in browsers, and [`origin`] holds off foreign pages and DNS rebinding.

pub mod alike;
pub mod attempts;
pub mod authenticator;
pub mod bearer;
pub mod codes;
pub mod dashboard;
pub mod keyring;
pub mod keys;
pub mod origin;
pub mod secret;
pub mod stored;

pub use authenticator::Authenticator;
pub use dashboard::DashboardSignIns;
pub use keyring::Keyring;
pub use origin::{OriginRules, OriginVerdict};
