//! Tracks whether the store works: the last failure of a write, and damage for good.

use std::sync::{Mutex, PoisonError};

use super::StoreError;

#[derive(Default)]
pub(crate) struct Health(Mutex<Option<StoreError>>);

impl Health {
    /// Records a failure that the request did not cause.
    pub(crate) fn failed(&self, error: &StoreError) {
        let mut trouble = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*trouble, Some(StoreError::Damaged(_))) {
            *trouble = Some(error.clone());
        }
    }

    /// Records a successful write, which ends any trouble but damage. Returns `true` if there was trouble.
    pub(crate) fn works(&self) -> bool {
        let mut trouble = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.take_if(|trouble| !matches!(trouble, StoreError::Damaged(_))).is_some()
    }

    pub(crate) fn trouble(&self) -> Option<StoreError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records damage that a read has met.
    pub(crate) fn heard<T>(&self, result: &Result<T, StoreError>) {
        let damage = match result {
            Err(error @ StoreError::Damaged(_)) => error.clone(),
            // Every record was readable when it was written.
            Err(error @ StoreError::BadRecord(_)) => StoreError::Damaged(error.to_string()),
            _ => return,
        };
        tracing::error!(error = %damage, "the store is damaged; stop the gateway and restore a backup");
        self.failed(&damage);
    }
}
