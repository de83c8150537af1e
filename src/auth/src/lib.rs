//! Who is asking: principals, roles, API keys, sign-in codes, dashboard sign-ins, Origin and Host rules.

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

pub use authenticator::{Authenticator, Credential, Identity};
pub use dashboard::DashboardSignIns;
pub use keyring::Keyring;
pub use origin::{OriginRules, OriginVerdict};
