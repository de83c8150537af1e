//! One request on its way through this crate: its exchange, and what its handler may use.

use std::{ops::Deref, sync::Arc};

use crate::services::SessionServices;
use countersign_exchange::context::Exchange;

/// See the module's page. Whatever needs no more than an [`Exchange`] takes that.
#[derive(Clone)]
pub struct Handling {
    pub exchange: Exchange,
    pub sessions: Arc<SessionServices>,
}

impl Deref for Handling {
    type Target = Exchange;

    fn deref(&self) -> &Exchange {
        &self.exchange
    }
}
