//! Counts what each principal keeps open: one that opens ever more must not take the gateway's memory.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::protocol::{ErrorKind, McpError};

/// Long-lived requests of each principal at every door (streams, feeds, listeners, waits), up to
/// `limits.max_streams`.
pub struct StreamSlots {
    max: usize,
    open: Mutex<HashMap<String, usize>>,
}

impl StreamSlots {
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default() })
    }

    /// A place for one of them, free again when dropped.
    ///
    /// # Errors
    /// `OVERLOADED` when the principal has all of its own.
    pub fn take(self: &Arc<Self>, principal: &str) -> Result<StreamSlot, McpError> {
        let mut open = self.open.lock();
        let count = open.entry(principal.to_owned()).or_default();
        if *count >= self.max {
            let why = format!("{} streams and waits are open already (limits.max_streams)", self.max);
            return Err(McpError::new(ErrorKind::Overloaded, why).with("limit", self.max as u64));
        }
        *count += 1;
        Ok(StreamSlot { slots: Arc::clone(self), principal: principal.to_owned() })
    }
}

/// See [`StreamSlots::take`].
pub struct StreamSlot {
    slots: Arc<StreamSlots>,
    principal: String,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self.slots.open.lock();
        if let Some(count) = open.get_mut(&self.principal) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_principal_has_its_own_and_gets_them_back() {
        let slots = StreamSlots::new(2);
        let held = [slots.take("alice").unwrap(), slots.take("alice").unwrap()];
        assert_eq!(slots.take("alice").err().unwrap().kind, ErrorKind::Overloaded);
        let _bob = slots.take("bob").unwrap();
        drop(held);
        let _again = slots.take("alice").unwrap();
        assert_eq!(slots.open.lock().len(), 2);
    }

    #[test]
    fn a_limit_of_none_keeps_nothing() {
        let slots = StreamSlots::new(0);
        assert!(slots.take("alice").is_err());
        assert_eq!(slots.open.lock().get("alice").copied().unwrap_or_default(), 0);
    }
}
