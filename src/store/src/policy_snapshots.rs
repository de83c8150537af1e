//! The policy in force, as it is found again after a restart.
//!
//! Each node has one of its own, and the store has the newest: that which was put into force last by a node that had the
//! newest before, or began with it having none, or by a reviewer's consent. A node that was left behind so never takes back
//! what others have gone on to. What a snapshot says is the affair of whoever reads the configuration; it holds no secrets.

use serde::{Deserialize, Serialize};

/// The fact with the newest one.
pub(crate) const NEWEST: &str = "policy_in_force";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySnapshot {
    /// Of the configuration that it was taken of.
    pub digest: String,
    /// Of a configuration that a reviewer has refused since.
    pub refused: Option<String>,
    pub body: String,
}

/// Those that a node begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySnapshots {
    /// Of this node.
    pub here: Option<PolicySnapshot>,
    /// Of whichever node, where it was saved last ([`crate::Store::save_policy`]).
    pub newest: Option<PolicySnapshot>,
    /// The audit trail has an entry of that of this node. It has none of what an older version saved.
    pub is_told: bool,
}

/// A snapshot as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored<T> {
    #[serde(flatten)]
    snapshot: T,
    /// See [`PolicySnapshots::is_told`].
    #[serde(default)]
    told: bool,
}

impl PolicySnapshots {
    /// Of stored texts, as a program of whatever version wrote them; one that cannot be read is none.
    pub(crate) fn read(here: Option<&str>, newest: Option<&str>) -> Self {
        let (here, newest) = (parsed(here), parsed(newest));
        let is_told = here.as_ref().is_some_and(|here| here.told);
        Self { here: here.map(|here| here.snapshot), newest: newest.map(|newest| newest.snapshot), is_told }
    }
}

fn parsed(text: Option<&str>) -> Option<Stored<PolicySnapshot>> {
    let text = text.filter(|text| !text.is_empty())?;
    serde_json::from_str(text)
        .inspect_err(|error| tracing::error!(%error, "the policy that was in force cannot be read"))
        .ok()
}

/// To be stored together with its entry in the audit trail.
pub(crate) fn written(snapshot: &PolicySnapshot) -> Result<String, crate::StoreError> {
    serde_json::to_string(&Stored { snapshot, told: true })
        .map_err(|error| crate::StoreError::BadRecord(error.to_string()))
}
