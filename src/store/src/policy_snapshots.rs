//! The recorded policy in force. A restarted gateway compares its configuration with this record.
//!
//! Each node has its own record, and the store has the newest policy. A node updates the newest policy only if the
//! node had or began with it, or with a reviewer's consent. A node with an outdated configuration therefore never
//! restores an older policy. The crate that reads the configuration defines the content, which holds no secrets.

use serde::{Deserialize, Serialize};

/// The name of the fact that holds the newest policy.
pub(crate) const NEWEST_POLICY_FACT: &str = "policy_in_force";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySnapshot {
    /// The digest of the configuration that the policy comes from.
    pub digest: String,
    /// The digest of a later configuration that a reviewer has refused.
    pub refused: Option<String>,
    pub body: String,
}

/// The recorded policies that a node begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySnapshots {
    /// The policy of this node.
    pub own: Option<PolicySnapshot>,
    /// The newest policy of all nodes ([`crate::StoreBackend::save_policy`]).
    pub newest: Option<PolicySnapshot>,
    /// The audit trail has an entry for this node's policy. Policies that an older version recorded have none.
    pub has_audit_entry: bool,
}

/// A snapshot in its stored form.
#[derive(Serialize, Deserialize)]
struct StoredSnapshot<T> {
    #[serde(flatten)]
    snapshot: T,
    /// The same as [`PolicySnapshots::has_audit_entry`].
    #[serde(rename = "told", default)]
    has_audit_entry: bool,
}

impl PolicySnapshots {
    /// Parses the stored texts of any version. An unreadable text counts as none.
    pub(crate) fn read(own: Option<&str>, newest: Option<&str>) -> Self {
        let (own, newest) = (parse_stored(own), parse_stored(newest));
        let has_audit_entry = own.as_ref().is_some_and(|own| own.has_audit_entry);
        Self { own: own.map(|own| own.snapshot), newest: newest.map(|newest| newest.snapshot), has_audit_entry }
    }
}

fn parse_stored(text: Option<&str>) -> Option<StoredSnapshot<PolicySnapshot>> {
    let text = text.filter(|text| !text.is_empty())?;
    serde_json::from_str(text)
        .inspect_err(
            |error| tracing::error!(%error, "the recorded policy in force cannot be parsed; treating it as missing"),
        )
        .ok()
}

/// Returns the stored form of a snapshot. The caller writes the audit entry in the same transaction.
pub(crate) fn to_stored(snapshot: &PolicySnapshot) -> Result<String, crate::StoreError> {
    Ok(serde_json::to_string(&StoredSnapshot { snapshot, has_audit_entry: true })?)
}
