//! Determines the configuration at the start of a gateway: the file, without changes that loosen the policy that was in
//! force last.
//!
//! The file is in force as it is if no earlier policy is known, as at the first start, or if the operator accepts it
//! (`serve --accept-policy`). An earlier policy that cannot be read counts as unknown, and the audit trail says so.

use std::{path::Path, sync::Arc};

use jiff::Timestamp;

use super::{
    State,
    diff::compare,
    digest::digest,
    pending::{HeldChanges, Loosening, PendingPolicy},
    snapshot,
    snapshot::PreviousConfig,
};
use countersign_config::{Config, LoadedConfig};
use countersign_store::{PolicySnapshot, PolicySnapshots};

/// The configuration at the start, with its pending changes.
pub struct InitialConfig {
    pub(super) loaded: LoadedConfig,
    pub(super) salt: [u8; 16],
    pub(super) state: State,
    /// Changes that loosen policy and that the operator has accepted.
    pub(super) accepted_by_operator: Vec<Loosening>,
    /// The reason why the earlier policy, or a part of it, is not known.
    pub(super) unreadable_reason: Option<String>,
}

impl InitialConfig {
    /// Builds the initial configuration for an empty store. Digests are salted with a secret of the store's gateways.
    pub fn for_empty_store(loaded: LoadedConfig, salt: [u8; 16]) -> Self {
        let state = State::new(&loaded);
        Self { loaded, salt, state, accepted_by_operator: Vec::new(), unreadable_reason: None }
    }

    /// Compares the file with the policy in the store. With `accept`, the operator accepts the file as it is.
    pub fn new(loaded: LoadedConfig, salt: [u8; 16], snapshots: PolicySnapshots, accept: bool) -> Self {
        // A policy without an entry in the audit trail counts as not saved, so it is saved again with its entry.
        let saved = snapshots.own.clone().filter(|_| snapshots.has_audit_entry);
        let mut initial = Self::for_empty_store(loaded, salt);
        let (configured, state) = (&initial.loaded.config, &mut initial.state);
        state.saved = saved;
        let digest = digest(configured, &salt);
        let PolicySnapshots { own, newest, .. } = snapshots;
        let has_digest =
            |policy: &Option<PolicySnapshot>| policy.as_ref().is_some_and(|policy| policy.digest == digest);
        // A reviewer may also have consented to the configuration at another node.
        if has_digest(&own) || has_digest(&newest) {
            return initial;
        }
        let refused = [&own, &newest].into_iter().flatten().any(|policy| policy.refused.as_ref() == Some(&digest));
        let Some(last) = own.or(newest) else { return initial };
        let PreviousConfig { config: previous, settings, unreadable_reason } = match snapshot::parse_previous(
            &last.body,
            configured,
            Some(&salt),
        ) {
            Ok(previous) => previous,
            // An unreadable policy in the store must not lock the operator out.
            Err(error) => {
                tracing::error!(%error, "the policy that was in force last cannot be read; the configured policy is in force unchanged");
                initial.unreadable_reason = Some(error.to_string());
                return initial;
            }
        };
        if let Some(reason) = &unreadable_reason {
            tracing::error!(
                reason,
                "a part of the policy that was in force last cannot be read; the configured values of that part are in force"
            );
        }
        initial.unreadable_reason = unreadable_reason;
        let (diff, mut effective) = compare(&previous, configured);
        if diff.policy_loosened.is_empty() {
            return initial;
        }
        if accept {
            initial.accepted_by_operator = diff.policy_loosened;
            return initial;
        }
        state.suspended = snapshot::take_servers_with_unknown_target(&mut effective);
        state.settings_view.record_previous(&settings, &diff.policy_loosened);
        for Loosening { key, from, to } in &diff.policy_loosened {
            tracing::warn!(
                key,
                from,
                to,
                refused,
                "this change loosens the policy that was in force last, so it is not in force yet"
            );
        }
        if refused {
            state.settings_view.record_refusal(diff.policy_loosened);
            state.refused = Some(digest);
        } else {
            tracing::warn!(
                "a reviewer has to decide on these changes: `countersign config pending`, then `countersign config consent`"
            );
            let mut content = state.settings_view.value_diffs(
                &diff.policy_loosened,
                (&effective, configured),
                &initial.loaded.settings,
            );
            // The text of the earlier servers is not known, so their pending changes are listed without a diff.
            content.retain(|value| value.key != "mcpServers");
            let since = Timestamp::now();
            let policy = PendingPolicy { digest, since, loosenings: diff.policy_loosened, content };
            state.pending = Some(HeldChanges { policy, config: Arc::clone(&state.in_force) });
        }
        state.in_force = Arc::new(effective);
        initial
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.state.in_force)
    }
}

/// Returns the configuration file if it has lost all its keys since this gateway ran last. A program may be about to write
/// them, so a start and a reload refuse such a file.
pub fn find_emptied_file<'a>(loaded: &'a LoadedConfig, snapshots: &PolicySnapshots) -> Option<&'a Path> {
    let had_keys = snapshots.own.as_ref().is_some_and(|own| snapshot::had_file_keys(&own.body));
    loaded.file.as_deref().filter(|_| had_keys && !loaded.file_has_keys)
}

/// Predicts the configuration that a start would put into force, and the changes that it would hold back for consent. This is
/// for commands that do not know the salt of the store's digests: the targets of servers count as unchanged.
pub fn predict_initial_config(configured: &Config, last: Option<&PolicySnapshot>) -> (Config, Vec<Loosening>) {
    let previous = last.and_then(|last| snapshot::parse_previous(&last.body, configured, None).ok());
    let Some(previous) = previous else { return (configured.clone(), Vec::new()) };
    let (diff, effective) = compare(&previous.config, configured);
    (effective, diff.policy_loosened)
}
