//! What a gateway begins with: its configuration, without what loosens the policy that was in force when the last one ended.
//!
//! Where nothing is known of that, as at the first start, the file is in force, and where the operator says so
//! (`serve --accept-policy`). What cannot be read is as what is not known, and stands in the audit trail.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Waiting, diff::compare, digest::digest, shown::Shown, snapshot, snapshot::Past, waiting::Loosening};
use countersign_config::{Config, Loaded, UpstreamConfig};
use countersign_store::{PolicySnapshot, PolicySnapshots};

/// See the module.
pub struct Opening {
    pub(super) loaded: Loaded,
    pub(super) salt: [u8; 16],
    pub(super) shown: Shown,
    pub(super) waiting: Option<(Waiting, Arc<Config>)>,
    /// A reviewer has refused the file, which this is the digest of.
    pub(super) refused: Option<String>,
    /// Servers that would have to go on with what they were started with before, and so do not run.
    pub(super) absent: Vec<UpstreamConfig>,
    /// What loosens policy and is in force because the operator says so.
    pub(super) meant: Vec<Loosening>,
    /// Why the policy that was in force is not known, or not all of it.
    pub(super) unread: Option<String>,
    /// As the store has it.
    pub(super) saved: Option<PolicySnapshot>,
}

impl Opening {
    /// Of a store that knows nothing yet. Digests are salted with what only gateways of the store know.
    #[must_use]
    pub fn first(loaded: Loaded, salt: [u8; 16]) -> Self {
        let shown = Shown::new(&loaded.settings);
        let (waiting, refused, absent, meant, unread, saved) = Default::default();
        Self { loaded, salt, shown, waiting, refused, absent, meant, unread, saved }
    }

    /// `accept`: the operator means the file as it is.
    #[must_use]
    pub fn new(loaded: Loaded, salt: [u8; 16], store: PolicySnapshots, accept: bool) -> Self {
        // What the audit trail does not tell of is saved once more, with its entry.
        let saved = store.here.clone().filter(|_| store.is_told);
        let mut opening = Self { saved, ..Self::first(loaded, salt) };
        let digest = digest(&opening.loaded.config, &salt);
        let PolicySnapshots { here, newest, .. } = store;
        let same = |one: &Option<PolicySnapshot>| one.as_ref().is_some_and(|one| one.digest == digest);
        // What a reviewer consented to at another node, too.
        if same(&here) || same(&newest) {
            return opening;
        }
        let refused = [&here, &newest].into_iter().flatten().any(|one| one.refused.as_ref() == Some(&digest));
        let Some(last) = here.or(newest) else { return opening };
        let now = opening.loaded.config.clone();
        let Past { config: past, settings, unread } = match snapshot::past(&last.body, &now, &salt) {
            Ok(past) => past,
            // Nobody is locked out by what an operator cannot mend.
            Err(error) => {
                tracing::error!(%error, "the policy that was in force is not known: the configuration is, as it is");
                opening.unread = Some(error.to_string());
                return opening;
            }
        };
        if let Some(unread) = &unread {
            tracing::error!(unread, "the policy that was in force is known in part: the rest is in force as it is");
        }
        opening.unread = unread;
        let (whole, mut at_once) = compare(&past, &now);
        if whole.policy_loosened.is_empty() {
            return opening;
        }
        if accept {
            opening.meant = whole.policy_loosened;
            return opening;
        }
        opening.absent = snapshot::take_unknown(&mut at_once);
        opening.shown.was(&settings, &whole.policy_loosened);
        for Loosening { key, from, to } in &whole.policy_loosened {
            tracing::warn!(key, from, to, refused, "this loosens the policy that was in force, and is not in force");
        }
        if refused {
            opening.shown.refused(whole.policy_loosened);
            opening.refused = Some(digest);
        } else {
            tracing::warn!("a reviewer decides: `countersign config pending`, `countersign config consent`");
            let mut content = opening.shown.content(&whole.policy_loosened, (&at_once, &now), &opening.loaded.settings);
            // How servers were written is not known; what of them waits is told.
            content.retain(|one| one.key != "mcpServers");
            let since = Timestamp::now();
            let waiting = Waiting { digest, since, loosens: whole.policy_loosened, content };
            opening.waiting = Some((waiting, Arc::new(now)));
        }
        opening.loaded.config = at_once;
        opening
    }

    /// What is in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.loaded.config
    }
}
