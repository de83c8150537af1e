//! A new configuration while the gateway runs: on SIGHUP, and when the file changes.
//!
//! Never puts a bad file into force in part, and never what loosens policy without a reviewer's consent
//! ([`Reloads::decide`]); until then the stricter of old and new holds. Keys that are read only at the start are said
//! to be so. The store has the policy in force, so that the next start ([`opening`]) compares the file with it, too.
//!
//! [`opening`] is what it begins with, [`watch`] sees that the file is another, [`diff`] and [`rule_lists`] compare it with
//! what is in force, [`apply`] is what puts it into force, and [`shown`] and [`status`] tell people.

pub mod apply;
pub mod diff;
mod digest;
pub mod opening;
pub mod rule_lists;
mod save;
mod server_versions;
pub mod shown;
mod snapshot;
pub mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod waiting;
pub mod watch;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use serde_json::{Value, json};

pub use self::{
    apply::Applies,
    diff::Diff,
    opening::Opening,
    status::{ReloadOutcome, Status, Why},
    waiting::{Loosening, Waiting},
};
use self::{
    diff::compare,
    shown::{InForce, Shown},
    status::Problem,
};
use countersign_config::{Config, ConfigError, Environment, Flags, Loaded, UpstreamConfig, load, reader::Setting};
use countersign_store::PolicySnapshot;

/// Where the configuration came from, to read it again.
#[derive(Clone, Debug, Default)]
pub struct Source {
    pub flags: Flags,
    pub env: Environment,
}

impl Source {
    /// As this process was started.
    #[must_use]
    pub fn of_process(flags: Flags) -> Self {
        Self { flags, env: Environment::of_process() }
    }
}

/// Tells everybody at a dashboard of an event.
pub type Tell = Box<dyn Fn(&Value) + Send + Sync>;

/// Why a decision on what waits did not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecideError {
    #[error("nothing of the configuration waits for consent")]
    Nothing,
    #[error("the configuration has changed since it was shown; look at it again")]
    Other,
    #[error("the decision could not be recorded: {0}")]
    NotRecorded(String),
    #[error("it cannot be put into force: {0}")]
    NotInForce(String),
}

/// Shared by who watches, who decides and who shows.
pub struct Reloads {
    source: Source,
    applies: Box<dyn Applies>,
    tell: Tell,
    salt: [u8; 16],
    /// Where the file is, or would be: that which was read at the start, or the default place.
    file: Option<PathBuf>,
    /// The file was there once: should it go, all stays as it was.
    was_read: AtomicBool,
    started: Vec<Setting>,
    meant: Vec<Loosening>,
    unread: Option<String>,
    state: Mutex<State>,
    /// One at a time.
    turn: tokio::sync::Mutex<()>,
}

struct State {
    in_force: Arc<Config>,
    generation: u64,
    waiting: Option<(Waiting, Arc<Config>)>,
    needs_restart: Vec<String>,
    last: Option<ReloadOutcome>,
    shown: Shown,
    /// See [`Opening`].
    refused: Option<String>,
    absent: Vec<UpstreamConfig>,
    saved: Option<PolicySnapshot>,
    /// What is in force could not be kept.
    unsaved: bool,
}

impl Reloads {
    /// What the opening has in force is in force already.
    #[must_use]
    pub fn new(source: Source, opening: Opening, applies: Box<dyn Applies>, tell: Tell) -> Self {
        let Opening { loaded, salt, shown, waiting, refused, absent, meant, unread, saved } = opening;
        let state = State {
            in_force: Arc::new(loaded.config),
            generation: 0,
            waiting,
            needs_restart: Vec::new(),
            last: None,
            shown,
            refused,
            absent,
            saved,
            unsaved: false,
        };
        Self {
            source,
            applies,
            tell,
            salt,
            was_read: AtomicBool::new(loaded.file.is_some()),
            file: loaded.place,
            started: loaded.settings,
            meant,
            unread,
            state: Mutex::new(state),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    /// The configuration in force. What is read only at the start is as it was then.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.lock().in_force)
    }

    /// The file that is watched: that which was read at the start, or one at the default place, which may be made later.
    #[must_use]
    pub fn file(&self) -> Option<&PathBuf> {
        self.file.as_ref()
    }

    /// Whether the file was there when the configuration was read last.
    #[must_use]
    pub fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Acquire)
    }

    /// What is in force, key by key, with what of it waits for consent.
    #[must_use]
    pub fn settings(&self) -> Vec<InForce> {
        let state = self.lock();
        let waiting = state.waiting.as_ref().map(|(waiting, _)| waiting);
        state.shown.in_force(&self.started, &state.in_force, waiting, &state.needs_restart)
    }

    #[must_use]
    pub fn status(&self) -> Status {
        let state = self.lock();
        Status {
            file: self.file.as_ref().map(|file| file.display().to_string()),
            generation: state.generation,
            waiting: state.waiting.as_ref().map(|(waiting, _)| waiting.clone()),
            needs_restart: state.needs_restart.clone(),
            last: state.last.clone(),
        }
    }

    /// Reads and proves everything again, and puts into force what does not wait for consent.
    pub async fn reload(&self, why: Why) {
        let _turn = self.turn.lock().await;
        match self.read().await {
            Ok(loaded) => self.take(why, loaded).await,
            Err(problems) => self.refused(why, problems),
        }
    }

    /// A reviewer's word on what waits. Whoever calls has made sure that it is one's.
    ///
    /// # Errors
    /// See [`DecideError`]; nothing has changed then.
    pub async fn decide(&self, digest: &str, accept: bool, by: &str) -> Result<(), DecideError> {
        let _turn = self.turn.lock().await;
        let (waiting, config) = self.lock().waiting.clone().ok_or(DecideError::Nothing)?;
        if waiting.digest != digest {
            return Err(DecideError::Other);
        }
        let keys: Vec<&str> = waiting.loosens.iter().map(|loosening| loosening.key.as_str()).collect();
        let keys = keys.join(", ");
        let event = if accept { "configuration_accepted" } else { "configuration_refused" };
        let details = json!({ "digest": digest, "loosens": waiting.loosens }).to_string();
        // On record before anything of it is in force.
        self.applies.record(event, by, details).await.map_err(DecideError::NotRecorded)?;
        tracing::warn!(target: "countersign::audit", event, by, digest, keys, "a reviewer decided on a looser policy");
        self.carry_out(waiting, config, accept, by, true).await
    }

    /// What was decided at another gateway of the same store, and is on record: counts where the same waits here now.
    pub async fn decided_elsewhere(&self, digest: &str, accept: bool, by: &str) {
        let _turn = self.turn.lock().await;
        let waiting = self.lock().waiting.clone().filter(|(waiting, _)| waiting.digest == digest);
        let Some((waiting, config)) = waiting else { return };
        tracing::warn!(by, digest, accept, "a reviewer decided on a looser policy at another gateway");
        if let Err(error) = self.carry_out(waiting, config, accept, by, false).await {
            tracing::error!(%error, "what was decided at another gateway is not in force here");
        }
    }

    /// `here`: it was decided at this gateway.
    async fn carry_out(
        &self,
        waiting: Waiting,
        config: Arc<Config>,
        accept: bool,
        by: &str,
        here: bool,
    ) -> Result<(), DecideError> {
        let digest = waiting.digest.as_str();
        let by = Some(by.to_owned());
        if !accept {
            let outcome = ReloadOutcome { by, ..outcome(Why::Consent, status::Effect::Refused) };
            {
                let mut state = self.lock();
                state.waiting = None;
                state.last = Some(outcome.clone());
                state.refused = Some(waiting.digest.clone());
                state.shown.refused(waiting.loosens);
            }
            self.save(false).await;
            self.ended(&outcome, Some(digest));
            return Ok(());
        }
        let before = self.config();
        self.put_in_force(&before, &config).await.map_err(DecideError::NotInForce)?;
        let (changes, _) = compare(&before, &config);
        let outcome = ReloadOutcome { by, changes, ..outcome(Why::Consent, status::Effect::Applied) };
        {
            let mut state = self.lock();
            state.in_force = config;
            state.generation += 1;
            state.waiting = None;
            state.last = Some(outcome.clone());
            state.absent.clear();
            state.shown.accepted();
        }
        self.save(here).await;
        self.ended(&outcome, Some(digest));
        Ok(())
    }

    async fn read(&self) -> Result<Loaded, Vec<Problem>> {
        let (source, expected) = (self.source.clone(), self.file.clone().filter(|_| self.was_read()));
        // Whoever replaced the file by something that blocks holds up no thread that serves.
        let read = tokio::task::spawn_blocking(move || {
            let regular = expected.as_ref().is_none_or(|file| std::fs::metadata(file).is_ok_and(|meta| meta.is_file()));
            if !regular && let Some(file) = &expected {
                return Err(vec![Problem {
                    place: file.display().to_string(),
                    key: None,
                    message: "the configuration file is gone, or no file any more".to_owned(),
                    remedy: "Put the file back; until then the old configuration stays in force.".to_owned(),
                }]);
            }
            load(&source.flags, &source.env).map_err(|error: ConfigError| Problem::all(&error))
        });
        read.await.unwrap_or_else(|error| Err(vec![Problem::in_force(error.to_string())]))
    }

    async fn take(&self, why: Why, loaded: Loaded) {
        if loaded.file.is_some() {
            self.was_read.store(true, Ordering::Release);
        }
        let before = self.config();
        let mut past = Config::clone(&before);
        past.upstreams.extend(self.lock().absent.iter().cloned());
        let (mut whole, mut at_once) = compare(&past, &loaded.config);
        if !whole.policy_loosened.is_empty() && self.is_newest(&loaded.config).await {
            at_once.policy.clone_from(&loaded.config.policy);
            at_once.upstreams.clone_from(&loaded.config.upstreams);
            whole.policy_loosened.clear();
            tracing::warn!("this loosens policy; a reviewer has consented to it at another gateway");
        }
        let absent = snapshot::take_unknown(&mut at_once);
        let (changes, _) = compare(&before, &at_once);
        if let Err(error) = self.put_in_force(&before, &at_once).await {
            return self.refused(why, vec![Problem::in_force(error)]);
        }
        let digest = digest::digest(&loaded.config, &self.salt);
        let refused = why == Why::File && self.lock().refused.as_ref() == Some(&digest);
        let held = whole.policy_loosened.clone();
        // What is read only at the start stays; consent is to the rest.
        let waits = (!held.is_empty() && !refused).then(|| {
            let config = Config {
                upstreams: loaded.config.upstreams.clone(),
                policy: loaded.config.policy.clone(),
                ..at_once.clone()
            };
            // Two files are compared line by line: under no lock.
            let shown = self.lock().shown.clone();
            let content = shown.content(&whole.policy_loosened, (&at_once, &config), &loaded.settings);
            (Waiting { digest, since: Timestamp::now(), loosens: whole.policy_loosened, content }, Arc::new(config))
        });
        let changed = !changes.is_empty();
        let changes = Diff { needs_restart: diff::needs_restart(&self.started, &loaded.settings), ..changes };
        let outcome = ReloadOutcome { changes, ..outcome(why, status::Effect::Applied) };
        let needs_restart = &outcome.changes.needs_restart;
        // Whoever asks sees all of what a reload has changed, or nothing of it.
        let (news, repaired, waiting) = {
            let mut state = self.lock();
            let same = |waits: &Option<(Waiting, Arc<Config>)>| waits.as_ref().map(|(waits, _)| waits.digest.clone());
            let waits_anew = same(&waits) != same(&state.waiting);
            let restart_anew = *needs_restart != state.needs_restart;
            if waits_anew {
                state.waiting = waits;
            }
            state.shown.read(&loaded.settings, &held);
            if refused {
                state.shown.refused(held);
            } else {
                state.refused = None;
            }
            state.needs_restart.clone_from(needs_restart);
            state.absent = absent;
            if changed {
                state.in_force = Arc::new(at_once);
                state.generation += 1;
            }
            let waiting = state.waiting.as_ref().filter(|_| waits_anew).map(|(waits, _)| waits.clone());
            let news = waits_anew || restart_anew || changed;
            let repaired = state.last.as_ref().is_some_and(|last| !last.problems.is_empty());
            if news {
                state.last = Some(outcome.clone());
            }
            (news, repaired, waiting)
        };
        self.save(false).await;
        if !news {
            // A file that was only touched, or looked at for the first time, is nobody's news. One that was refused
            // before and is valid again is.
            if repaired || why == Why::Signal {
                tracing::info!("the configuration is unchanged");
                let outcome = ReloadOutcome { result: status::Effect::Unchanged, ..outcome };
                self.lock().last = Some(outcome.clone());
                if repaired {
                    self.ended(&outcome, None);
                }
            }
            return;
        }
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        say(why, &outcome.changes);
        if let Some(waiting) = waiting {
            for Loosening { key, from, to } in &waiting.loosens {
                tracing::warn!(key, from, to, "this loosens policy and waits for a reviewer's consent");
            }
            (self.tell)(&json!({
                "type": "config.waiting", "at": waiting.since.to_string(), "digest": waiting.digest,
                "loosens": waiting.loosens,
            }));
        }
        self.ended(&outcome, None);
    }

    fn refused(&self, why: Why, problems: Vec<Problem>) {
        tracing::error!(
            ?why,
            problems = problems.len(),
            "the new configuration is refused as a whole, the old one stays"
        );
        for Problem { place, key, message, remedy } in &problems {
            tracing::error!(
                "{place}: {}{message}. {remedy}",
                key.as_ref().map_or(String::new(), |key| format!("{key}: "))
            );
        }
        let outcome = ReloadOutcome { problems, ..outcome(why, status::Effect::Refused) };
        self.lock().last = Some(outcome.clone());
        self.ended(&outcome, None);
    }

    /// All of it or nothing, as far as it differs.
    async fn put_in_force(&self, before: &Config, now: &Config) -> Result<(), String> {
        let routing = before.policy != now.policy || before.routes != now.routes;
        // Policy first: what is new meets it.
        if routing {
            self.applies.routing(&now.policy, &now.routes).await?;
        }
        let mut done = Ok(());
        if before.upstreams != now.upstreams {
            done = self.applies.servers(&before.upstreams, &now.upstreams).await;
        }
        // What can be taken back without a trace comes before what cannot: a webhook that goes is forgotten.
        if done.is_ok() {
            done = self.put_rest_in_force(before, now).await;
            if done.is_err() && before.upstreams != now.upstreams {
                self.back("mcpServers", self.applies.servers(&now.upstreams, &before.upstreams).await);
            }
        }
        if done.is_err() && routing {
            self.back("policy", self.applies.routing(&before.policy, &before.routes).await);
        }
        done
    }

    async fn put_rest_in_force(&self, before: &Config, now: &Config) -> Result<(), String> {
        let filter = before.log.filter != now.log.filter;
        if filter {
            self.applies.log_filter(&now.log.filter)?;
        }
        let mut done = Ok(());
        if before.webhooks != now.webhooks {
            done = self.applies.webhooks(&now.webhooks).await;
            if done.is_err() {
                self.back("webhooks", self.applies.webhooks(&before.webhooks).await);
                if filter {
                    self.back("log.filter", self.applies.log_filter(&before.log.filter));
                }
            }
        }
        done
    }

    fn back(&self, what: &str, done: Result<(), String>) {
        if let Err(error) = done {
            tracing::error!(what, error, "the old configuration could not be put back");
        }
    }

    /// Tells of what the status says already.
    fn ended(&self, outcome: &ReloadOutcome, digest: Option<&str>) {
        let kind = if outcome.result == status::Effect::Refused { "config.refused" } else { "config.applied" };
        let mut event = json!({ "type": kind });
        if let (Value::Object(event), Ok(Value::Object(said))) = (&mut event, serde_json::to_value(outcome)) {
            event.extend(said);
            event.extend(digest.map(|digest| ("digest".to_owned(), digest.into())));
        }
        (self.tell)(&event);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn outcome(why: Why, result: status::Effect) -> ReloadOutcome {
    ReloadOutcome { at: Timestamp::now(), why, result, problems: Vec::new(), changes: Diff::default(), by: None }
}

fn say(why: Why, changes: &Diff) {
    let Diff { upstreams_added, upstreams_removed, upstreams_changed, needs_restart, .. } = changes;
    let Diff { webhooks_added, webhooks_removed, webhooks_changed, .. } = changes;
    tracing::info!(
        ?why,
        ?upstreams_added,
        ?upstreams_removed,
        ?upstreams_changed,
        ?webhooks_added,
        ?webhooks_removed,
        ?webhooks_changed,
        policy = changes.policy_changed,
        routes = changes.routes_changed,
        log = changes.log_changed,
        "the new configuration is in force"
    );
    for tightened in &changes.policy_tightened {
        tracing::info!("policy is stricter: {tightened}");
    }
    if !needs_restart.is_empty() {
        tracing::warn!(keys = ?needs_restart, "these keys take effect at the next start");
    }
}
