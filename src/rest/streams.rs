//! Counts the open streams of each principal: one that opens ever more must not take the gateway's memory.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::Problem;
use crate::protocol::ErrorKind;

/// Feed streams of each principal, up to `limits.max_streams`.
pub struct StreamSlots {
    max: usize,
    open: Mutex<HashMap<String, usize>>,
}

impl StreamSlots {
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default() })
    }

    /// A place for one stream, free again when dropped.
    ///
    /// # Errors
    /// `OVERLOADED` when the principal has all of its own.
    pub fn take(self: &Arc<Self>, principal: &str) -> Result<StreamSlot, Problem> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(principal.to_owned()).or_default();
        if *count >= self.max {
            let why = format!("{} streams are open already (limits.max_streams)", self.max);
            return Err(Problem::new(ErrorKind::Overloaded, why));
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
        let mut open = self.slots.open.lock().unwrap_or_else(PoisonError::into_inner);
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
        assert_eq!(slots.take("alice").err().unwrap().error.kind, ErrorKind::Overloaded);
        let _bob = slots.take("bob").unwrap();
        drop(held);
        let _again = slots.take("alice").unwrap();
        assert_eq!(slots.open.lock().unwrap().len(), 2);
    }
}
