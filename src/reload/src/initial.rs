//! The configuration at the start of a gateway: the file, without changes that loosen the policy that was in force
//! last.
//!
//! The file is in force as it is if no earlier policy is known, as at the first start, or if the operator accepts it
//! (`serve --accept-policy`). An earlier policy that cannot be read counts as unknown, and the audit trail says so.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    PendingPolicy, diff::compare, digest::digest, pending::Loosening, settings_view::SettingsView, snapshot,
    snapshot::PreviousConfig,
};
use countersign_config::{Config, LoadedConfig, UpstreamConfig};
use countersign_store::{PolicySnapshot, PolicySnapshots};

/// The configuration at the start, with its pending changes.
pub struct InitialConfig {
    pub(super) loaded: LoadedConfig,
    pub(super) salt: [u8; 16],
    pub(super) settings_view: SettingsView,
    pub(super) pending: Option<(PendingPolicy, Arc<Config>)>,
    /// The digest of the file, if a reviewer has refused it.
    pub(super) refused: Option<String>,
    /// Servers that do not run, because the earlier target that would stay in force is not known.
    pub(super) suspended: Vec<UpstreamConfig>,
    /// Changes that loosen policy and that the operator has accepted.
    pub(super) accepted_by_operator: Vec<Loosening>,
    /// Why the earlier policy, or a part of it, is not known.
    pub(super) unread_reason: Option<String>,
    /// The policy as saved in the store.
    pub(super) saved: Option<PolicySnapshot>,
}

impl InitialConfig {
    /// Builds the initial configuration for an empty store. Digests are salted with a secret of the store's gateways.
    #[must_use]
    pub fn for_empty_store(loaded: LoadedConfig, salt: [u8; 16]) -> Self {
        Self {
            settings_view: SettingsView::new(&loaded.settings),
            loaded,
            salt,
            pending: None,
            refused: None,
            suspended: Vec::new(),
            accepted_by_operator: Vec::new(),
            unread_reason: None,
            saved: None,
        }
    }

    /// Compares the file with the policy in the store. `accept`: the operator accepts the file as it is.
    #[must_use]
    pub fn new(loaded: LoadedConfig, salt: [u8; 16], store: PolicySnapshots, accept: bool) -> Self {
        // A policy that the audit trail lacks is saved once more, with its entry.
        let saved = store.here.clone().filter(|_| store.is_told);
        let mut opening = Self { saved, ..Self::for_empty_store(loaded, salt) };
        let digest = digest(&opening.loaded.config, &salt);
        let PolicySnapshots { here, newest, .. } = store;
        let same = |one: &Option<PolicySnapshot>| one.as_ref().is_some_and(|one| one.digest == digest);
        // It may also have been consented to at another node.
        if same(&here) || same(&newest) {
            return opening;
        }
        let refused = [&here, &newest].into_iter().flatten().any(|one| one.refused.as_ref() == Some(&digest));
        let Some(last) = here.or(newest) else { return opening };
        let now = opening.loaded.config.clone();
        let PreviousConfig { config: past, settings, unread_reason: unread } = match snapshot::parse_previous(
            &last.body, &now, &salt,
        ) {
            Ok(past) => past,
            // An operator must not be locked out by what they cannot repair.
            Err(error) => {
                tracing::error!(%error, "the policy that was in force is not known: the configuration is, as it is");
                opening.unread_reason = Some(error.to_string());
                return opening;
            }
        };
        if let Some(unread) = &unread {
            tracing::error!(unread, "the policy that was in force is known in part: the rest is in force as it is");
        }
        opening.unread_reason = unread;
        let (whole, mut at_once) = compare(&past, &now);
        if whole.policy_loosened.is_empty() {
            return opening;
        }
        if accept {
            opening.accepted_by_operator = whole.policy_loosened;
            return opening;
        }
        opening.suspended = snapshot::take_unknown_servers(&mut at_once);
        opening.settings_view.record_previous(&settings, &whole.policy_loosened);
        for Loosening { key, from, to } in &whole.policy_loosened {
            tracing::warn!(key, from, to, refused, "this loosens the policy that was in force, and is not in force");
        }
        if refused {
            opening.settings_view.record_refusal(whole.policy_loosened);
            opening.refused = Some(digest);
        } else {
            tracing::warn!("a reviewer decides: `countersign config pending`, `countersign config consent`");
            let mut content =
                opening.settings_view.value_diffs(&whole.policy_loosened, (&at_once, &now), &opening.loaded.settings);
            // How the servers were written is not known, so their pending changes are named one by one.
            content.retain(|one| one.key != "mcpServers");
            let since = Timestamp::now();
            let waiting = PendingPolicy { digest, since, loosens: whole.policy_loosened, content };
            opening.pending = Some((waiting, Arc::new(now)));
        }
        opening.loaded.config = at_once;
        opening
    }

    /// Returns the configuration in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.loaded.config
    }
}
