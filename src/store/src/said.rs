//! What reviewers said of tools and of calls to come.

use std::collections::HashMap;

use countersign_domain::{
    policy::{Pins, StandingRule},
    principal::Role,
};

/// See the module's page.
#[derive(Debug, Default)]
pub struct Said {
    pub pins: Pins,
    /// Those that are over, too.
    pub rules: Vec<StandingRule>,
    /// The roles of the keys that are not revoked.
    pub keys: HashMap<String, Role>,
}
