//! Tracks whether the store works: the last failed write, which the next success clears, and damage, which stays.

use parking_lot::Mutex;

use super::StoreError;

#[derive(Default)]
pub(crate) struct Health(Mutex<Option<StoreError>>);

impl Health {
    /// Records an error of the store, as opposed to an error of the request.
    pub(crate) fn record_failure(&self, error: &StoreError) {
        let mut last_error = self.0.lock();
        if !matches!(*last_error, Some(StoreError::Damaged(_))) {
            *last_error = Some(error.clone());
        }
    }

    /// Records a successful write, which clears any error except damage.
    pub(crate) fn record_success(&self) {
        if self.0.lock().take_if(|last_error| !matches!(last_error, StoreError::Damaged(_))).is_some() {
            tracing::info!("the store works again");
        }
    }

    pub(crate) fn last_error(&self) -> Option<StoreError> {
        self.0.lock().clone()
    }

    /// Records the error of a read if it reports damage.
    pub(crate) fn record_damage(&self, error: &StoreError) {
        let damage = match error {
            StoreError::Damaged(_) => error.clone(),
            // The store writes only readable records, so an unreadable one was damaged.
            StoreError::BadRecord(_) => StoreError::Damaged(error.to_string()),
            _ => return,
        };
        tracing::error!(error = %damage, "the store is damaged; stop the gateway and restore a backup");
        self.record_failure(&damage);
    }
}
