//! Where a name leads, to a module or to an upstream: decided once, when a table is built.

use std::{ops::Deref, sync::Arc};

use countersign_provider::{Module, Provider};
use countersign_upstream::Upstream;

/// Where a call goes.
#[derive(Clone)]
pub enum Target {
    /// It is called here, with values.
    Module(Arc<dyn Module>),
    /// It is called by way of the bridge, with the bytes that came in; the Executor calls it as a provider.
    Upstream(Arc<Upstream>),
}

impl Target {
    /// The upstream, where it is one.
    #[must_use]
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        match self {
            Self::Module(_) => None,
            Self::Upstream(upstream) => Some(upstream),
        }
    }

    /// What all providers have in common: for previews and the Executor.
    #[must_use]
    pub fn provider(&self) -> Arc<dyn Provider> {
        match self {
            Self::Module(module) => Arc::clone(module) as _,
            Self::Upstream(upstream) => Arc::clone(upstream) as _,
        }
    }

    /// Whether both are the very same provider, and not only two of one name.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.address() == other.address()
    }

    /// What tells one provider from another of the same name.
    #[must_use]
    pub fn address(&self) -> usize {
        match self {
            Self::Module(module) => Arc::as_ptr(module).cast::<()>() as usize,
            Self::Upstream(upstream) => Arc::as_ptr(upstream).cast::<()>() as usize,
        }
    }
}

impl Deref for Target {
    type Target = dyn Provider;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Module(module) => &**module,
            Self::Upstream(upstream) => &**upstream,
        }
    }
}
