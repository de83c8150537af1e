//! The destination of a name, which is a module or an upstream. It is decided when a table is built.

use std::{ops::Deref, sync::Arc};

use countersign_provider::{Module, Provider};
use countersign_upstream::Upstream;

/// The destination of a call.
#[derive(Clone)]
pub enum RouteTarget {
    /// A module, called directly with parsed values.
    Module(Arc<dyn Module>),
    /// An upstream, called through the bridge with the client's bytes. The Executor calls it as a provider.
    Upstream(Arc<Upstream>),
}

impl RouteTarget {
    /// Returns the upstream, if the target is one.
    #[must_use]
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        match self {
            Self::Module(_) => None,
            Self::Upstream(upstream) => Some(upstream),
        }
    }

    /// Returns the target as a provider, for previews and the Executor.
    #[must_use]
    pub fn provider(&self) -> Arc<dyn Provider> {
        match self {
            Self::Module(module) => Arc::clone(module) as _,
            Self::Upstream(upstream) => Arc::clone(upstream) as _,
        }
    }

    /// Returns `true` if both are the same instance, not only providers of the same name.
    #[must_use]
    pub fn is_same_provider(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    /// Returns a number that distinguishes this instance from others of the same name.
    #[must_use]
    pub fn identity(&self) -> usize {
        match self {
            Self::Module(module) => Arc::as_ptr(module).cast::<()>() as usize,
            Self::Upstream(upstream) => Arc::as_ptr(upstream).cast::<()>() as usize,
        }
    }
}

impl Deref for RouteTarget {
    type Target = dyn Provider;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Module(module) => &**module,
            Self::Upstream(upstream) => &**upstream,
        }
    }
}
