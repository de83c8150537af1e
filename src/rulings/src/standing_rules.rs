//! Standing rules of a running gateway: given on a change or on a tool ([`allow`]), listed, taken back, ended. Each of these
//! is on record before it is in force, and told on the feed.
//!
//! What a rule decides is counted: in the rule, in the log line of each call, and, so that neither a flood of calls nor a
//! quiet week fills or leaves out the audit trail, as one entry a minute for each rule that was used. All entries of a
//! rule stand in the timeline of the change that it was given on, if it was given on one.

mod allow;
mod elsewhere;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::tool_acceptance::Rebuild;
use countersign_domain::{
    changes::{Change, ServedBy, machine::SYSTEM, people::Person},
    policy::{
        CallFacts, Reviewers, Says, StandingRule, StandingSource, Verdict,
        standing_rules::{self, suffices},
    },
    principal::Principal,
};
use countersign_feed::Feed;
use countersign_protocol::{ErrorKind, McpError, arguments::canonical_text_hash};
use countersign_routing::table::{Published, ToolRoute};
use countersign_runtime::crash::crash_point;
use countersign_store::{Nodes, Record, Store, StoreError, standing_rules::USED, write_record};

/// Rules of one owner, and of all, that are not over.
pub const MAX_OF_ONE: usize = 200;
pub const MAX: usize = 2000;
/// Seconds.
pub const MAX_ALLOW: u64 = 30 * 86_400;
pub const MAX_DENY: u64 = 366 * 86_400;
/// Bytes of arguments that are kept to be shown.
const MAX_ARGUMENTS: usize = 64 << 10;
/// How often ends are looked for, and after how many of these uses are recorded.
const TICK: Duration = Duration::from_secs(1);
const TICKS_OF_USES: u32 = 60;

/// Of a rule whose creator may decide no more: of one that allows, and of one that denies.
const ENDS: &str = "the key that it was given with was revoked, or may not decide any more";
const STAYS: &str =
    "the key that it was given with was revoked, or may not decide any more; it denies until a reviewer revokes it";

/// Which arguments a rule speaks of: exactly those of its change, or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arguments {
    Exact,
    Any,
}

/// Whose calls a rule speaks of: those of whoever proposed its change, or everybody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whose {
    Same,
    Any,
}

/// A rule as somebody wants it.
#[derive(Clone, Debug)]
pub struct NewRule {
    pub says: Says,
    pub arguments: Arguments,
    pub principal: Whose,
    /// Seconds.
    pub lasts: Option<u64>,
    pub comment: Option<String>,
}

/// The rules as they are now, read where routes are built.
pub struct StandingRuleCache {
    rules: ArcSwap<Vec<Arc<StandingRule>>>,
    /// Nobody here would hear that one was revoked.
    cut_off: AtomicBool,
    nodes: Arc<dyn Nodes>,
}

impl StandingSource for StandingRuleCache {
    fn of_tool(&self, provider: &str, tool: &str) -> Vec<Arc<StandingRule>> {
        let rules = self.rules.load();
        let cut_off = self.cut_off.load(Ordering::Acquire);
        let speaks = |rule: &&Arc<StandingRule>| {
            !rule.is_over()
                && rule.provider == provider
                && rule.tool == tool
                && !(cut_off && rule.verdict == Says::Allow)
        };
        rules.iter().filter(speaks).cloned().collect()
    }
}

impl StandingRuleCache {
    /// Reads all rules.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn open(store: &Arc<dyn Store>) -> Result<Arc<Self>, StoreError> {
        let nodes = store.nodes();
        let now = now(&*nodes);
        let rules = store.standing_rules().await?.into_iter().map(|rule| Arc::new(rule.timed(now))).collect();
        Ok(Arc::new(Self { rules: ArcSwap::from_pointee(rules), cut_off: AtomicBool::new(false), nodes }))
    }

    /// While this node hears nothing of the others, no rule allows anything: one may have been revoked. Whether that is
    /// news; then routes are to be built anew.
    pub fn set_cut_off(&self, cut_off: bool) -> bool {
        self.cut_off.swap(cut_off, Ordering::AcqRel) != cut_off
    }

    /// All rules that are kept, oldest first.
    #[must_use]
    pub fn rules(&self) -> Arc<Vec<Arc<StandingRule>>> {
        self.rules.load_full()
    }

    fn put(&self, rule: &StandingRule) {
        self.rules.rcu(|rules| {
            let mut rules: Vec<Arc<StandingRule>> = Vec::clone(rules);
            match rules.iter_mut().find(|known| known.id == rule.id) {
                Some(known) => *known = Arc::new(rule.clone()),
                None => rules.push(Arc::new(rule.clone())),
            }
            let over = rules.iter().filter(|rule| rule.is_over()).count();
            let mut forget = over.saturating_sub(usize::try_from(countersign_store::standing_rules::KEPT).unwrap_or(0));
            rules.retain(|rule| {
                let goes = forget > 0 && rule.is_over();
                forget -= usize::from(goes);
                !goes
            });
            rules
        });
    }
}

/// The time of all nodes, to the millisecond, as all other times that people see.
fn now(nodes: &dyn Nodes) -> Timestamp {
    let now = nodes.now();
    now.round(jiff::Unit::Millisecond).unwrap_or(now)
}

/// What [`StandingRules::new`] is made of.
pub struct Parts {
    pub store: Arc<dyn Store>,
    pub board: Arc<StandingRuleCache>,
    pub people: Arc<dyn Reviewers>,
    pub routes: Arc<Published>,
    pub rebuild: Rebuild,
    pub feed: Feed,
}

/// See the module's page.
pub struct StandingRules {
    parts: Parts,
    /// One at a time, so that bounds hold.
    changing: tokio::sync::Mutex<()>,
    /// Uses that are on record, by rule.
    recorded: Mutex<HashMap<String, u64>>,
}

impl StandingRules {
    fn now(&self) -> Timestamp {
        now(&*self.parts.board.nodes)
    }

    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let recorded = parts.board.rules().iter().map(|rule| (rule.id.clone(), rule.uses.get())).collect();
        Self { parts, changing: tokio::sync::Mutex::new(()), recorded: Mutex::new(recorded) }
    }

    /// All that are kept, newest first.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<StandingRule>> {
        self.parts.board.rules().iter().rev().cloned().collect()
    }

    /// The tools that there are.
    #[must_use]
    pub fn routes(&self) -> &Arc<Published> {
        &self.parts.routes
    }

    /// A reviewer gives a rule on a change.
    ///
    /// # Errors
    /// `VALIDATION_FAILED` (no end, too long, a comment is asked for), `SELF_APPROVAL`, `FORBIDDEN` (the change asks for
    /// more than this reviewer's word), `VERSION_CONFLICT` (the tool is gone or another), `POLICY_DENIED`,
    /// `RATE_LIMITED`, `STORE_UNAVAILABLE`.
    pub async fn create(&self, change: &Change, by: &Principal, new: NewRule) -> Result<Arc<StandingRule>, McpError> {
        let _one_at_a_time = self.changing.lock().await;
        self.may_create(change, by, &new)?;
        self.is_room(by, 1)?;
        let now = self.now();
        let lasts = new.lasts.and_then(|seconds| i64::try_from(seconds).ok()).map(jiff::SignedDuration::from_secs);
        let exact = new.arguments == Arguments::Exact;
        let text = change.arguments.get();
        let rule = StandingRule {
            served_by: change.served_by.as_ref().map(|by| by.fingerprint.clone()),
            principal: (new.principal == Whose::Same).then(|| change.proposer.principal.clone()),
            proposer: Some(standing_rules::Whose {
                name: change.proposer.principal.clone(),
                owner: change.proposer.owner.clone(),
                key_id: change.proposer.key_id.clone(),
            }),
            arguments_hash: exact.then(|| canonical_text_hash(text)),
            arguments: (exact && text.len() <= MAX_ARGUMENTS).then(|| Arc::clone(&change.arguments)),
            from_change: Some(change.id.clone()),
            comment: new.comment,
            expires_at: lasts.and_then(|lasts| now.checked_add(lasts).ok()),
            ..blank(new.says, (&change.provider, &change.tool, &change.tool_hash), by, now)
        }
        .timed(now);
        crash_point("before_rule_created");
        self.write(&rule, "standing_rule_created", "rule.created", &by.name, rule.comment.as_deref()).await?;
        crash_point("after_rule_created");
        tracing::info!(rule = %rule.id, change = %change.id, by = %by.name, says = ?rule.verdict, "a standing rule was given");
        Ok(Arc::new(rule))
    }

    fn may_create(&self, change: &Change, by: &Principal, new: &NewRule) -> Result<(), McpError> {
        let invalid = |message: String| Err(McpError::new(ErrorKind::ValidationFailed, message));
        let forbidden = |message: &'static str| Err(McpError::new(ErrorKind::Forbidden, message));
        let people = &*self.parts.people;
        let most = if new.says == Says::Allow { MAX_ALLOW } else { MAX_DENY };
        match new.lasts {
            None if new.says == Says::Allow => {
                return invalid(format!("a rule that allows needs an end: `for` must be 1 to {MAX_ALLOW} seconds"));
            }
            Some(seconds) if seconds == 0 || seconds > most => {
                return invalid(format!("`for` must be 1 to {most} seconds"));
            }
            _ => {}
        }
        if change.terms.require_comment && new.comment.is_none() {
            return invalid("the change asks for a comment, and so does a rule that is given on it".to_owned());
        }
        if !people.may_decide(&change.terms, by) {
            return forbidden("the change asks for other reviewers");
        }
        if new.says == Says::Deny {
            return Ok(());
        }
        let proposer = &change.proposer;
        if change.is_proposed_by(Person::of(by)) {
            return Err(McpError::new(ErrorKind::SelfApproval, "nobody allows what they proposed themselves"));
        }
        if !change.terms.editors_may_approve() && change.is_edited_by(Person::of(by)) {
            let message = "you have edited the arguments, and the change asks somebody else to approve them then";
            return Err(McpError::new(ErrorKind::SelfApproval, message));
        }
        if !suffices(people, &change.terms, by) {
            return forbidden(
                "the change needs more than one approval or a preview each time, which no standing rule stands in for",
            );
        }
        let table = self.parts.routes.load();
        let route: Option<&Arc<ToolRoute>> =
            table.tools().iter().find(|r| r.provider.name() == change.provider && r.name == change.tool);
        let same = |route: &&Arc<ToolRoute>| {
            let fingerprint = change.served_by.as_ref().map(|ServedBy { fingerprint, .. }| fingerprint.as_str());
            route.hash == change.tool_hash && fingerprint == Some(route.provider.target())
        };
        let Some(route) = route.filter(same) else {
            let message = "the tool is gone, or another than the one that the change was proposed to, or its server has \
                           another command or address";
            return Err(McpError::new(ErrorKind::VersionConflict, message));
        };
        let caller = Principal {
            name: proposer.principal.clone(),
            role: countersign_domain::principal::Role::Agent,
            key_id: proposer.key_id.clone(),
            owner: proposer.owner.clone(),
        };
        let decision = route.ruling_on(&change.arguments).decide(&CallFacts {
            principal: &caller,
            transport: &proposer.transport,
            revision: proposer.revision.as_deref().unwrap_or_default(),
            client: proposer.client_name.as_deref(),
            arguments: &change.arguments,
        });
        if decision.mark.is_some() {
            return forbidden("nobody has accepted the tool's definition yet; until then each call is reviewed");
        }
        if decision.meant() == Verdict::Deny {
            return Err(McpError::new(ErrorKind::PolicyDenied, "the policy denies such calls by now"));
        }
        if decision.meant() == Verdict::Review && !suffices(people, &decision.terms, by) {
            return forbidden("the policy asks for more than this reviewer's word by now");
        }
        Ok(())
    }

    fn is_room(&self, by: &Principal, more: usize) -> Result<(), McpError> {
        let rules = self.parts.board.rules();
        let live = rules.iter().filter(|rule| !rule.is_over());
        let is_own = |rule: &StandingRule| Person::of(&rule.creator()).is(Person::of(by));
        let (all, own) = live.fold((0, 0), |(all, own), rule| (all + 1, own + usize::from(is_own(rule))));
        if all + more <= MAX && own + more <= MAX_OF_ONE {
            return Ok(());
        }
        let message = "too many standing rules; revoke some (countersign rules list)";
        Err(McpError::new(ErrorKind::RateLimited, message).with("max", MAX_OF_ONE as u64))
    }

    /// Whether it denies calls of this person, also through another of their keys. Rules from before their proposer was
    /// noted say so by the change that they were given on, and by the name alone once retention has deleted that.
    async fn denies_their_own(&self, rule: &StandingRule, by: &Principal) -> Result<bool, McpError> {
        let person = Person::of(by);
        if rule.principal.as_ref().is_some_and(|name| person.is_called(name)) {
            return Ok(true);
        }
        if let Some(proposer) = &rule.proposer {
            return Ok(proposer.person().is(person));
        }
        let Some(change) = &rule.from_change else { return Ok(false) };
        let given_on = self.parts.store.get(change).await.map_err(|error| {
            tracing::error!(%error, rule = %rule.id, "the change of a standing rule could not be read");
            McpError::new(ErrorKind::StoreUnavailable, "it could not be read whose calls the rule denies")
        })?;
        Ok(given_on.is_some_and(|change| change.is_proposed_by(Person::of(by))))
    }

    /// Takes a rule back; any reviewer may, since it only makes things as strict or as lax as the configuration has them.
    ///
    /// # Errors
    /// `NOT_FOUND`, `VERSION_CONFLICT` for one that is over, `SELF_APPROVAL` for a denial of what one calls oneself,
    /// `STORE_UNAVAILABLE`.
    pub async fn revoke(&self, id: &str, by: &Principal, comment: Option<&str>) -> Result<Arc<StandingRule>, McpError> {
        let _one_at_a_time = self.changing.lock().await;
        let rules = self.parts.board.rules();
        let Some(rule) = rules.iter().find(|rule| rule.id == id) else {
            return Err(McpError::new(ErrorKind::NotFound, "Standing rule not found"));
        };
        if rule.is_over() {
            let message = "the standing rule is over already";
            return Err(McpError::new(ErrorKind::VersionConflict, message).with("ruleId", rule.id.as_str()));
        }
        if rule.verdict == Says::Deny && self.denies_their_own(rule, by).await? {
            let message = "nobody takes back what denies their own calls";
            return Err(McpError::new(ErrorKind::SelfApproval, message));
        }
        let revoked = StandingRule {
            revoked_at: Some(self.now()),
            revoked_by: Some(by.name.clone()),
            ..StandingRule::clone(rule)
        };
        crash_point("before_rule_revoked");
        self.write(&revoked, "standing_rule_revoked", "rule.revoked", &by.name, comment).await?;
        crash_point("after_rule_revoked");
        tracing::info!(rule = %id, by = %by.name, "a standing rule was revoked");
        Ok(Arc::new(revoked))
    }

    /// The rules as they are now.
    #[must_use]
    pub fn board(&self) -> &StandingRuleCache {
        &self.parts.board
    }

    /// Looks for ends, and from time to time records what was used, until the gateway shuts down.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = 0_u32;
        let mut seen = None;
        loop {
            self.look_for_orphans(&mut seen).await;
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = shutdown.cancelled() => return,
            }
            self.expire().await;
            ticks = ticks.wrapping_add(1);
            if ticks.is_multiple_of(TICKS_OF_USES) {
                self.record_uses().await;
            }
        }
    }

    /// Ends what is due. What cannot be recorded is tried again; it decides on nothing meanwhile.
    pub async fn expire(&self) {
        let now = self.now();
        let rules = self.parts.board.rules();
        let due = rules.iter().filter(|rule| !rule.is_over() && rule.is_due(now));
        let ended: Vec<StandingRule> =
            due.map(|rule| StandingRule { expired_at: Some(now), ..StandingRule::clone(rule) }).collect();
        if ended.is_empty() {
            return;
        }
        let _one_at_a_time = self.changing.lock().await;
        for rule in ended {
            // Somebody may have revoked it meanwhile.
            if self.parts.board.rules().iter().any(|known| known.id == rule.id && known.is_over()) {
                continue;
            }
            if let Err(error) = self.write(&rule, "standing_rule_expired", "rule.expired", SYSTEM, None).await {
                tracing::warn!(%error, "the end of a standing rule could not be recorded");
                return;
            }
        }
    }

    /// Looks whether the keys with which rules were given still hold, whenever some key may have ceased to. What was
    /// allowed with one that does not is ended, and what was denied is marked.
    async fn look_for_orphans(&self, seen: &mut Option<u64>) {
        let Ok(losses) = self.parts.people.losses() else { return };
        if *seen != Some(losses) && self.end_orphans().await {
            *seen = Some(losses);
        }
    }

    /// Whether all could be looked at and recorded. What could not be is tried again; it allows nothing meanwhile.
    pub async fn end_orphans(&self) -> bool {
        let _one_at_a_time = self.changing.lock().await;
        let mut all = true;
        for rule in self.parts.board.rules().iter().filter(|rule| !rule.is_over() && rule.orphaned_at.is_none()) {
            match self.parts.people.now(&rule.creator()) {
                Ok(Some(creator)) if creator.role.may_decide() => continue,
                Ok(_) => {}
                Err(_) => {
                    all = false;
                    continue;
                }
            }
            let now = self.now();
            let mut orphan = StandingRule { orphaned_at: Some(now), ..StandingRule::clone(rule) };
            let (event, feed, comment) = match rule.verdict {
                Says::Allow => {
                    orphan.revoked_at = Some(now);
                    orphan.revoked_by = Some(SYSTEM.to_owned());
                    ("standing_rule_revoked", "rule.revoked", ENDS)
                }
                Says::Deny => ("standing_rule_orphaned", "rule.orphaned", STAYS),
            };
            tracing::warn!(rule = %rule.id, by = %rule.created_by, says = ?rule.verdict, "whoever gave a standing rule may decide no more");
            if let Err(error) = self.write(&orphan, event, feed, SYSTEM, Some(comment)).await {
                tracing::warn!(%error, "that a standing rule lost its creator could not be recorded");
                all = false;
            }
        }
        all
    }

    /// Records how often rules decided, where that is more than what is on record.
    pub async fn record_uses(&self) {
        let _one_at_a_time = self.changing.lock().await;
        let rules = self.parts.board.rules();
        let used: Vec<StandingRule> = {
            let recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
            let before = |rule: &StandingRule| recorded.get(&rule.id).copied().unwrap_or(0);
            rules.iter().filter(|rule| rule.uses.get() > before(rule)).map(|rule| StandingRule::clone(rule)).collect()
        };
        let written = used.iter().map(|rule| self.submit(rule, USED, SYSTEM, None));
        if let Some(Err(error)) = join_all(written).await.into_iter().find(Result::is_err) {
            tracing::warn!(%error, "uses of standing rules could not be recorded; they will be");
        }
    }

    async fn write(
        &self,
        rule: &StandingRule,
        event: &'static str,
        feed: &'static str,
        by: &str,
        comment: Option<&str>,
    ) -> Result<(), McpError> {
        self.submit(rule, event, by, comment).await?;
        crash_point("between_rule_and_routes");
        self.parts.board.put(rule);
        (self.parts.rebuild)().await;
        self.tell(rule, feed, by, comment);
        Ok(())
    }

    fn tell(&self, rule: &StandingRule, feed: &'static str, by: &str, comment: Option<&str>) {
        let at = self.now().to_string();
        let event = json!({ "type": feed, "at": at, "actor": by, "comment": comment, "rule": rule });
        self.parts.feed.publish_session(&event);
    }

    /// With an entry in the timeline of the change that the rule was given on, or else of the rule's server.
    async fn submit(
        &self,
        rule: &StandingRule,
        event: &'static str,
        by: &str,
        comment: Option<&str>,
    ) -> Result<(), McpError> {
        let uses = rule.uses.get();
        let mut details = json!({ "rule": told(rule) });
        if let Some(comment) = comment {
            details["comment"] = comment.into();
        }
        let record = Record {
            change: rule.from_change.clone().unwrap_or_default(),
            server: if rule.from_change.is_some() { String::new() } else { rule.provider.clone() },
            rules: vec![rule.clone()],
            ..Record::new(event, self.now(), by, details.to_string())
        };
        // Written even where the endpoint's client goes away.
        let written = write_record(&*self.parts.store, record).await;
        written.map_err(|error| {
            tracing::error!(%error, "a standing rule could not be stored");
            error.told("it could not be stored; nothing has changed")
        })?;
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).insert(rule.id.clone(), uses);
        Ok(())
    }
}

/// A rule that nobody has narrowed yet: any arguments, whoever calls, without an end.
fn blank(verdict: Says, (provider, tool, hash): (&str, &str, &str), by: &Principal, now: Timestamp) -> StandingRule {
    StandingRule {
        id: format!("srl_{}", nanoid::nanoid!(24, &nanoid::alphabet::SAFE[2..])),
        verdict,
        provider: provider.to_owned(),
        tool: tool.to_owned(),
        tool_hash: hash.to_owned(),
        served_by: None,
        principal: None,
        proposer: None,
        arguments_hash: None,
        arguments: None,
        from_change: None,
        created_by: by.name.clone(),
        created_by_role: by.role,
        created_by_owner: by.owner.clone(),
        created_by_key: by.key_id.clone(),
        comment: None,
        created_at: now,
        expires_at: None,
        revoked_at: None,
        revoked_by: None,
        expired_at: None,
        orphaned_at: None,
        uses: Default::default(),
        deadline: None,
    }
}

/// Of a rule in the audit trail: everything but the arguments, which the hash stands for.
fn told(rule: &StandingRule) -> Value {
    json!({
        "id": rule.id, "verdict": rule.verdict, "provider": rule.provider, "tool": rule.tool, "toolHash": rule.tool_hash,
        "principal": rule.principal, "argumentsHash": rule.arguments_hash, "fromChange": rule.from_change,
        "createdBy": rule.created_by, "expiresAt": rule.expires_at, "orphanedAt": rule.orphaned_at, "uses": rule.uses,
    })
}
