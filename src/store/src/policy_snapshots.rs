//! The recorded policy in force, which a restarted gateway is compared with.
//!
//! Each node has its own, and the store has the newest one: that which was last put into force by a node that had or
//! began with the newest before, or by a reviewer's consent. A node that was left behind so never brings back an older
//! policy. The content belongs to the reader of the configuration, and holds no secrets.

use serde::{Deserialize, Serialize};

/// The name of the fact with the newest one.
pub(crate) const NEWEST: &str = "policy_in_force";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySnapshot {
    /// The digest of the configuration that it was taken from.
    pub digest: String,
    /// The digest of a configuration that a reviewer has refused since.
    pub refused: Option<String>,
    pub body: String,
}

/// The recorded policies that a node begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySnapshots {
    /// The policy of this node.
    pub here: Option<PolicySnapshot>,
    /// The policy of the node that saved it last ([`crate::StoreBackend::save_policy`]).
    pub newest: Option<PolicySnapshot>,
    /// The audit trail has an entry of this node's policy. Those of an older version have none.
    pub is_told: bool,
}

/// A snapshot in its stored form.
#[derive(Serialize, Deserialize)]
struct StoredSnapshot<T> {
    #[serde(flatten)]
    snapshot: T,
    /// The same as [`PolicySnapshots::is_told`].
    #[serde(default)]
    told: bool,
}

impl PolicySnapshots {
    /// Parses the stored texts of any version. An unreadable text counts as none.
    pub(crate) fn read(here: Option<&str>, newest: Option<&str>) -> Self {
        let (here, newest) = (parsed(here), parsed(newest));
        let is_told = here.as_ref().is_some_and(|here| here.told);
        Self { here: here.map(|here| here.snapshot), newest: newest.map(|newest| newest.snapshot), is_told }
    }
}

fn parsed(text: Option<&str>) -> Option<StoredSnapshot<PolicySnapshot>> {
    let text = text.filter(|text| !text.is_empty())?;
    serde_json::from_str(text)
        .inspect_err(|error| tracing::error!(%error, "the policy that was in force cannot be read"))
        .ok()
}

/// Returns the stored form of a snapshot that is written together with its audit entry.
pub(crate) fn written(snapshot: &PolicySnapshot) -> Result<String, crate::StoreError> {
    serde_json::to_string(&StoredSnapshot { snapshot, told: true })
        .map_err(|error| crate::StoreError::BadRecord(error.to_string()))
}
