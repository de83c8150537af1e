//! Reloads the configuration while the gateway runs: on SIGHUP, and when the file changes.
//!
//! A bad file is refused as a whole, and a change that loosens policy needs a reviewer's consent
//! ([`Reloader::decide`]); until then the stricter of old and new applies. Keys that are read only at the start are
//! reported. The policy in force is saved in the store, so that the next start ([`initial`]) compares the file with it,
//! too.
//!
//! [`initial`] determines the configuration at the start, [`watch`] notices a changed file, [`diff`] and `rule_lists`
//! compare it with the one in force, [`apply`] puts it into force, and [`settings_view`] and [`status`] report to people.
//! [`file_edits`] edits the file ([`config_file`]): its servers, and with [`policy_edits`] its rules.

pub mod apply;
pub mod config_file;
pub mod diff;
mod digest;
pub mod file_edits;
mod identity_providers;
mod initial;
pub mod pending;
pub mod policy_edits;
mod rule_lists;
mod save;
mod server_diff;
pub mod settings_view;
mod snapshot;
pub mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod watch;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

pub use self::{
    apply::Reconfigurable,
    diff::Diff,
    initial::{InitialConfig, find_emptied_file, predict_initial_config},
    pending::{Loosening, PendingPolicy},
    status::{ReloadCause, ReloadOutcome, ReloadStatus},
};
use self::{
    diff::compare,
    pending::{ACCEPTED_EVENT, HeldChanges, OwnDecisions, REFUSED_EVENT, join_keys},
    settings_view::{ActiveSetting, SettingsView},
    status::{Problem, ReloadEffect, log_changes},
};
use countersign_config::{Config, Environment, Flags, LoadedConfig, UpstreamConfig, load};
use countersign_runtime::background;
use countersign_store::PolicySnapshot;

/// The flags and the environment from which the configuration is read.
#[derive(Clone, Debug, Default)]
pub struct ConfigSource {
    pub flags: Flags,
    pub env: Environment,
}

impl ConfigSource {
    /// Returns the source with the environment of this process.
    pub fn from_process(flags: Flags) -> Self {
        Self { flags, env: Environment::from_process() }
    }
}

/// Publishes an event to all dashboards.
pub type EventPublisher = Box<dyn Fn(&Value) + Send + Sync>;

/// The reason why a decision on pending changes was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConsentError {
    #[error("no change of the configuration waits for consent")]
    NothingPending,
    #[error("the configuration has changed since it was shown; look at it again")]
    Superseded,
    #[error("another decision was recorded before this one, and that one counts")]
    DecidedElsewhere,
    #[error("the decision could not be recorded: {0}")]
    NotRecorded(String),
    #[error(
        "the decision is recorded, but the store cannot be read; once it can, the first recorded decision takes effect: {0}"
    )]
    NotYetInForce(String),
    #[error("the accepted configuration cannot be put into force: {0}")]
    NotInForce(String),
}

/// Reloads the configuration. The file watcher, the reviewers' decisions and the status pages share it.
pub struct Reloader {
    source: ConfigSource,
    gateway: Box<dyn Reconfigurable>,
    publish: EventPublisher,
    salt: [u8; 16],
    /// The path of the file that was read at the start, or the default path.
    file: Option<PathBuf>,
    /// `true` once the file has been read. If the file disappears later, the old configuration stays in force.
    has_read_file: AtomicBool,
    /// See [`InitialConfig`].
    accepted_by_operator: Vec<Loosening>,
    /// See [`InitialConfig`].
    unreadable_reason: Option<String>,
    state: Mutex<State>,
    /// Serializes reloads and decisions.
    reload_lock: tokio::sync::Mutex<()>,
}

struct State {
    in_force: Arc<Config>,
    /// `true` if the file that was applied last sets a key.
    file_has_keys: bool,
    generation: u64,
    pending: Option<HeldChanges>,
    /// Skipped in [`Reloader::apply_remote_decision`].
    own_decisions: OwnDecisions,
    needs_restart: Vec<String>,
    last: Option<ReloadOutcome>,
    settings_view: SettingsView,
    /// The digest of the file, if a reviewer has refused it.
    refused: Option<String>,
    /// Servers that do not run: their new target waits for consent, and of the old one only the hash is known.
    suspended: Vec<UpstreamConfig>,
    /// The policy that the store has saved for this gateway.
    saved: Option<PolicySnapshot>,
    /// `true` if the policy in force could not be saved.
    is_unsaved: bool,
}

impl State {
    /// Returns the state in which a configuration is in force as it is.
    fn new(loaded: &LoadedConfig) -> Self {
        Self {
            in_force: Arc::new(loaded.config.clone()),
            file_has_keys: loaded.file_has_keys,
            generation: 0,
            pending: None,
            own_decisions: OwnDecisions::default(),
            needs_restart: Vec::new(),
            last: None,
            settings_view: SettingsView::new(&loaded.settings),
            refused: None,
            suspended: Vec::new(),
            saved: None,
            is_unsaved: false,
        }
    }

    fn active_settings(&self) -> Vec<ActiveSetting> {
        let pending = self.pending.as_ref().map(|held| &held.policy);
        self.settings_view.active_settings(&self.in_force, pending, &self.needs_restart)
    }
}

impl Reloader {
    /// Starts with the initial configuration, which is in force already.
    pub fn new(
        source: ConfigSource,
        initial: InitialConfig,
        gateway: Box<dyn Reconfigurable>,
        publish: EventPublisher,
    ) -> Self {
        let InitialConfig { loaded, salt, state, accepted_by_operator, unreadable_reason } = initial;
        Self {
            source,
            gateway,
            publish,
            salt,
            has_read_file: AtomicBool::new(loaded.file.is_some()),
            file: loaded.lookup_path,
            accepted_by_operator,
            unreadable_reason,
            state: Mutex::new(state),
            reload_lock: tokio::sync::Mutex::new(()),
        }
    }

    /// Returns the configuration in force. Keys that are read only at the start have the values from then.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.state.lock().in_force)
    }

    /// Returns the watched file: the one that was read at the start, or the default path, where one may be created
    /// later.
    pub fn file(&self) -> Option<&PathBuf> {
        self.file.as_ref()
    }

    /// Returns `true` once the file has been read, even if it has disappeared since.
    pub fn has_read_file(&self) -> bool {
        self.has_read_file.load(Ordering::Acquire)
    }

    /// Returns the settings in force, key by key, with their pending changes.
    pub fn settings(&self) -> Vec<ActiveSetting> {
        self.state.lock().active_settings()
    }

    /// Returns the status that `GET /api/reload` reports.
    pub fn status(&self) -> ReloadStatus {
        let state = self.state.lock();
        ReloadStatus {
            file: self.file.as_ref().map(|file| file.display().to_string()),
            generation: state.generation,
            waiting: state.pending.as_ref().map(|held| held.policy.clone()),
            needs_restart: state.needs_restart.clone(),
            last: state.last.clone(),
        }
    }

    /// Reads and validates the configuration again, and applies everything that needs no consent.
    pub async fn reload(&self, cause: ReloadCause) {
        let _guard = self.reload_lock.lock().await;
        match self.read_config().await.and_then(|loaded| self.refuse_emptied_file(cause, loaded)) {
            Ok(loaded) => self.apply_loaded(cause, loaded).await,
            Err(problems) => self.reject(cause, problems),
        }
    }

    /// Carries out a reviewer's decision on the pending changes. The caller has checked that `by` is a reviewer. Of
    /// decisions at several nodes, the first in the audit trail counts.
    ///
    /// # Errors
    /// Returns a [`ConsentError`]. With `NotInForce` the decision is recorded, but the old configuration stays in force.
    /// With `NotYetInForce` that is so until the trail is passed to [`Self::apply_remote_decision`], because this node does
    /// not know whether the decision is the first.
    pub async fn decide(&self, digest: &str, accept: bool, by: &str) -> Result<(), ConsentError> {
        let _guard = self.reload_lock.lock().await;
        let held = self.state.lock().pending.clone().ok_or(ConsentError::NothingPending)?;
        let HeldChanges { policy: pending, config } = held;
        if pending.digest != digest {
            return Err(ConsentError::Superseded);
        }
        let keys = join_keys(&pending.loosenings);
        let event = if accept { ACCEPTED_EVENT } else { REFUSED_EVENT };
        let details = json!({ "digest": digest, "loosens": pending.loosenings }).to_string();
        // The decision is recorded before it takes effect.
        self.gateway.record(event, by, details).await.map_err(ConsentError::NotRecorded)?;
        let recorded = self.gateway.unapplied_decisions(digest).await.map_err(ConsentError::NotYetInForce)?;
        {
            let mut state = self.state.lock();
            if state.own_decisions.first_other(digest, recorded).is_some_and(|first| first != accept) {
                // The other decision is applied like each one of another node.
                return Err(ConsentError::DecidedElsewhere);
            }
            state.own_decisions.add(digest, accept);
        }
        tracing::warn!(target: "countersign::audit", event, by, digest, keys, "a reviewer decided on a looser policy");
        if accept {
            return self.accept_pending(digest, config, by, true).await;
        }
        self.refuse_pending(pending, by).await;
        Ok(())
    }

    /// Carries out a decision that the audit trail of the store records, if it was made at another node and the same
    /// changes are pending here.
    pub async fn apply_remote_decision(&self, digest: &str, accept: bool, by: &str) {
        let _guard = self.reload_lock.lock().await;
        let pending = {
            let mut state = self.state.lock();
            if state.own_decisions.remove(digest, accept) {
                return;
            }
            state.pending.clone().filter(|held| held.policy.digest == digest)
        };
        let Some(HeldChanges { policy: pending, config }) = pending else { return };
        tracing::warn!(by, digest, accept, "a reviewer decided on a looser policy at another node");
        if !accept {
            return self.refuse_pending(pending, by).await;
        }
        if let Err(error) = self.accept_pending(digest, config, by, false).await {
            tracing::error!(%error, "a decision that was made at another node could not be carried out here");
        }
    }

    /// Puts pending changes into force after a reviewer consented. `is_local` tells whether that happened at this node.
    async fn accept_pending(
        &self,
        digest: &str,
        config: Arc<Config>,
        by: &str,
        is_local: bool,
    ) -> Result<(), ConsentError> {
        let before = self.config();
        apply::put_in_force(&*self.gateway, &before, &config).await.map_err(ConsentError::NotInForce)?;
        let (changes, _) = compare(&before, &config);
        let by = Some(by.to_owned());
        let outcome = ReloadOutcome { by, changes, ..ReloadOutcome::new(ReloadCause::Consent, ReloadEffect::Applied) };
        {
            let mut state = self.state.lock();
            state.in_force = config;
            state.generation += 1;
            state.pending = None;
            state.last = Some(outcome.clone());
            state.suspended.clear();
            state.settings_view.accept_pending();
        }
        self.save_policy(is_local).await;
        self.publish_outcome(&outcome, Some(digest));
        Ok(())
    }

    /// Drops pending changes that a reviewer refused.
    async fn refuse_pending(&self, pending: PendingPolicy, by: &str) {
        let by = Some(by.to_owned());
        let outcome = ReloadOutcome { by, ..ReloadOutcome::new(ReloadCause::Consent, ReloadEffect::Refused) };
        {
            let mut state = self.state.lock();
            state.pending = None;
            state.last = Some(outcome.clone());
            state.refused = Some(pending.digest.clone());
            state.settings_view.record_refusal(pending.loosenings);
        }
        self.save_policy(false).await;
        self.publish_outcome(&outcome, Some(&pending.digest));
    }

    async fn read_config(&self) -> Result<LoadedConfig, Vec<Problem>> {
        let (source, expected) = (self.source.clone(), self.file.clone().filter(|_| self.has_read_file()));
        // The file is read on a blocking thread, since it may have been replaced by something that blocks, such as a pipe.
        let load_task = background::spawn_blocking(move || {
            let is_readable =
                expected.as_ref().is_none_or(|file| std::fs::metadata(file).is_ok_and(|meta| meta.is_file()));
            if !is_readable && let Some(file) = &expected {
                return Err(vec![Problem {
                    place: file.display().to_string(),
                    key: None,
                    message: "the configuration file is missing, or is not a regular file any more".to_owned(),
                    remedy: "Put the file back; until then the old configuration stays in force.".to_owned(),
                }]);
            }
            load(&source.flags, &source.env).map_err(Problem::from_config_error)
        });
        load_task.await.unwrap_or_else(|error| Err(vec![Problem::not_applicable(error.to_string())]))
    }

    /// Refuses a file that has lost all its keys, because a program may be about to write them. SIGHUP confirms it.
    fn refuse_emptied_file(&self, cause: ReloadCause, loaded: LoadedConfig) -> Result<LoadedConfig, Vec<Problem>> {
        let is_emptied = cause == ReloadCause::File && !loaded.file_has_keys && self.state.lock().file_has_keys;
        if is_emptied { Err(vec![Problem::emptied_file(loaded.file.as_deref())]) } else { Ok(loaded) }
    }

    async fn apply_loaded(&self, cause: ReloadCause, loaded: LoadedConfig) {
        if loaded.file.is_some() {
            self.has_read_file.store(true, Ordering::Release);
        }
        let before = self.config();
        // A suspended server is compared with its earlier settings, although it does not run.
        let mut old = Config::clone(&before);
        old.upstreams.extend(self.state.lock().suspended.iter().cloned());
        let (mut diff, mut effective) = compare(&old, &loaded.config);
        if !diff.policy_loosened.is_empty() && self.is_newest_policy(&loaded.config).await {
            effective = diff::apply_consent(&effective, &loaded.config);
            diff.policy_loosened.clear();
            tracing::warn!("the new configuration loosens policy; a reviewer has consented to it at another node");
        }
        let suspended = snapshot::take_servers_with_unknown_target(&mut effective);
        let (changes, _) = compare(&before, &effective);
        if let Err(error) = apply::put_in_force(&*self.gateway, &before, &effective).await {
            return self.reject(cause, vec![Problem::not_applicable(error)]);
        }
        let digest = digest::digest(&loaded.config, &self.salt);
        let was_refused = cause == ReloadCause::File && self.state.lock().refused.as_ref() == Some(&digest);
        let loosened = diff.policy_loosened.clone();
        let pending = (!loosened.is_empty() && !was_refused)
            .then(|| self.hold_for_consent(&effective, &loaded, digest, diff.policy_loosened));
        let has_changes = !changes.is_empty();
        let needs_restart = diff::keys_that_need_restart(self.state.lock().settings_view.at_start(), &before, &loaded);
        let changes = Diff { needs_restart, ..changes };
        let outcome = ReloadOutcome { changes, ..ReloadOutcome::new(cause, ReloadEffect::Applied) };
        let needs_restart = &outcome.changes.needs_restart;
        // Readers see all changes of a reload or none of them.
        let (has_news, was_invalid, new_pending) = {
            let mut state = self.state.lock();
            let digest_of = |pending: &Option<HeldChanges>| pending.as_ref().map(|held| held.policy.digest.clone());
            let pending_changed = digest_of(&pending) != digest_of(&state.pending);
            let restart_keys_changed = *needs_restart != state.needs_restart;
            // Changes that the digest does not cover are in force already, and consent must not undo them.
            state.pending = match (state.pending.take(), pending) {
                (Some(known), Some(pending)) if !pending_changed => {
                    Some(HeldChanges { policy: known.policy, config: pending.config })
                }
                (_, pending) => pending,
            };
            state.settings_view.record_file(&loaded.settings, &loosened);
            if was_refused {
                state.settings_view.record_refusal(loosened);
            } else {
                state.refused = None;
            }
            state.needs_restart.clone_from(needs_restart);
            state.suspended = suspended;
            state.file_has_keys = loaded.file_has_keys;
            if has_changes {
                state.in_force = Arc::new(effective);
                state.generation += 1;
            }
            let new_pending = state.pending.as_ref().filter(|_| pending_changed).map(|held| held.policy.clone());
            let has_news = pending_changed || restart_keys_changed || has_changes;
            let was_invalid = state.last.as_ref().is_some_and(|last| !last.problems.is_empty());
            if has_news {
                state.last = Some(outcome.clone());
            }
            (has_news, was_invalid, new_pending)
        };
        self.save_policy(false).await;
        if !has_news {
            return self.report_unchanged(cause, outcome, was_invalid);
        }
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        log_changes(cause, &outcome.changes);
        if let Some(pending) = new_pending {
            self.announce_pending(&pending);
        }
        self.publish_outcome(&outcome, None);
    }

    /// Returns the changes that wait for consent, with the configuration that consent puts into force. Keys that are read only
    /// at the start stay as they are.
    fn hold_for_consent(
        &self,
        effective: &Config,
        loaded: &LoadedConfig,
        digest: String,
        loosenings: Vec<Loosening>,
    ) -> HeldChanges {
        let config = diff::apply_consent(effective, &loaded.config);
        // Two files are compared line by line, which must not happen under the lock.
        let settings_view = self.state.lock().settings_view.clone();
        let content = settings_view.value_diffs(&loosenings, (effective, &config), &loaded.settings);
        let policy = PendingPolicy { digest, since: Timestamp::now(), loosenings, content };
        HeldChanges { policy, config: Arc::new(config) }
    }

    /// Reports that the file changes nothing, if a person asked for the reload or the file was invalid before.
    fn report_unchanged(&self, cause: ReloadCause, outcome: ReloadOutcome, was_invalid: bool) {
        if !was_invalid && cause != ReloadCause::Signal {
            return;
        }
        tracing::info!("the configuration is unchanged");
        let outcome = ReloadOutcome { result: ReloadEffect::Unchanged, ..outcome };
        self.state.lock().last = Some(outcome.clone());
        if was_invalid {
            self.publish_outcome(&outcome, None);
        }
    }

    fn announce_pending(&self, pending: &PendingPolicy) {
        for Loosening { key, from, to } in &pending.loosenings {
            tracing::warn!(key, from, to, "this change loosens policy and waits for a reviewer's consent");
        }
        (self.publish)(&json!({
            "type": "config.waiting", "at": pending.since.to_string(), "digest": pending.digest,
            "loosens": pending.loosenings,
        }));
    }

    fn reject(&self, cause: ReloadCause, problems: Vec<Problem>) {
        tracing::error!(
            why = ?cause,
            problems = problems.len(),
            "the new configuration is refused as a whole; the old one stays in force"
        );
        for problem in &problems {
            tracing::error!("{}: {}", problem.place, problem.describe());
        }
        let outcome = ReloadOutcome { problems, ..ReloadOutcome::new(cause, ReloadEffect::Refused) };
        self.state.lock().last = Some(outcome.clone());
        self.publish_outcome(&outcome, None);
    }

    /// Publishes an outcome that the status shows already.
    fn publish_outcome(&self, outcome: &ReloadOutcome, digest: Option<&str>) {
        let kind = if outcome.result == ReloadEffect::Refused { "config.refused" } else { "config.applied" };
        let mut event = json!({ "type": kind });
        if let (Value::Object(event), Ok(Value::Object(fields))) = (&mut event, serde_json::to_value(outcome)) {
            event.extend(fields);
            event.extend(digest.map(|digest| ("digest".to_owned(), digest.into())));
        }
        (self.publish)(&event);
    }
}
