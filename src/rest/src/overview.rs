//! Summarizes the changes of a day or a month, the servers that are down, and the calls of the last hours.

use std::collections::{BTreeMap, HashSet};

use actix_web::{HttpRequest, HttpResponse, web};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Caller, Problem, Query, ServerSource, json_response};
use countersign_domain::changes::ChangeState;
use countersign_protocol::ErrorKind;
use countersign_review::Changes;
use countersign_store::{OverviewRecords, TransitionRecord};
use countersign_telemetry::metrics::{CallHistory, CallsInMinute};

/// The ages by which waiting changes are counted, in seconds.
const AGE_LIMITS: [i64; 3] = [5 * 60, 60 * 60, 24 * 60 * 60];
/// Maximum number of agents, and of tools, in an overview.
const MAX_GROUPS: usize = 20;
/// The length of a period of calls.
const CALL_PERIOD_MINUTES: u64 = 10;
/// The number of periods of calls.
const CALL_PERIODS: u64 = 36;

/// The time that an overview covers, in equal periods.
#[derive(Clone, Copy)]
struct OverviewRange {
    name: &'static str,
    periods: i32,
    period: SignedDuration,
}

const RANGES: [OverviewRange; 2] = [
    OverviewRange { name: "24h", periods: 24, period: SignedDuration::from_hours(1) },
    OverviewRange { name: "30d", periods: 30, period: SignedDuration::from_hours(24) },
];

/// The changes that wait for a decision.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Waiting)]
struct WaitingChanges {
    count: usize,
    /// The time of the oldest proposal.
    #[schema(required)]
    oldest_at: Option<Timestamp>,
    /// The numbers of changes by age.
    ages: Vec<WaitingAge>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct WaitingAge {
    /// The age in seconds below which these changes are; `null` for the oldest.
    #[schema(required)]
    below: Option<i64>,
    count: usize,
}

/// The times from the proposals to the decisions that fall into the range.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct DecisionTimes {
    count: usize,
    #[schema(required)]
    median_ms: Option<i64>,
    /// Nine of ten decisions took no longer.
    #[schema(required)]
    p90_ms: Option<i64>,
}

/// Numbers of changes. A change counts once, by its last decision and its last outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
struct Outcomes {
    proposed: usize,
    approved: usize,
    rejected: usize,
    /// Changes that failed or whose outcome is unknown.
    failed: usize,
}

#[derive(Serialize, ToSchema)]
struct Period {
    from: Timestamp,
    #[serde(flatten)]
    outcomes: Outcomes,
}

#[derive(Serialize, ToSchema)]
struct AgentOutcomes {
    name: String,
    #[serde(flatten)]
    outcomes: Outcomes,
}

#[derive(Serialize, ToSchema)]
struct ToolOutcomes {
    server: String,
    name: String,
    #[serde(flatten)]
    outcomes: Outcomes,
}

/// The tool calls of ten minutes at this gateway.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct CallPeriod {
    from: Timestamp,
    calls: u64,
    failed: u64,
    /// The average time to an answer in microseconds, without calls that became pending changes.
    #[schema(required)]
    average_us: Option<u64>,
}

/// The overview of a range.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Overview {
    range: &'static str,
    since: Timestamp,
    /// `false` if there were too many transitions or waiting changes to count all of them.
    complete: bool,
    waiting: WaitingChanges,
    decision_times: DecisionTimes,
    totals: Outcomes,
    /// The periods of the range, oldest first.
    periods: Vec<Period>,
    /// The agents with the most changes, by the sum of their numbers.
    agents: Vec<AgentOutcomes>,
    /// The tools with the most changes, by the sum of their numbers.
    tools: Vec<ToolOutcomes>,
    /// The servers that are down, or to which a connection is being made.
    servers_down: Vec<String>,
    /// The tool calls of the last six hours, oldest first.
    calls: Vec<CallPeriod>,
}

/// Returns the waiting changes, the decisions and their times, the failures, the servers that are down, and recent calls.
///
/// The calls are those of this gateway since its start. Everything else comes from the store.
#[utoipa::path(get, path = "/api/overview", operation_id = "getOverview",
    params(("range" = Option<String>, Query, description = "`24h` (the default) or `30d`.")),
    responses((status = 200, description = "The overview", body = Overview)))]
pub async fn get(
    _: Caller,
    request: HttpRequest,
    changes: web::Data<Changes>,
    servers: web::Data<dyn ServerSource>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["range"])?;
    let name = query.get("range").unwrap_or("24h");
    let range = RANGES.into_iter().find(|range| range.name == name);
    let range = range.ok_or_else(|| Problem::new(ErrorKind::InvalidParams, "range must be 24h or 30d"))?;
    let now = Timestamp::now();
    let since = now - range.period * range.periods;
    let records = changes.overview(since).await?;
    let servers = servers.list_servers().await;
    let is_down = |status: &str| matches!(status, "down" | "connecting");
    let servers_down = servers.into_iter().filter(|server| is_down(server.status)).map(|server| server.name).collect();
    let calls = summarize_calls(&CallHistory::global().minutes(), now);
    Ok(json_response(&Overview { servers_down, calls, ..summarize(&records, range, now) }))
}

/// Summarizes the records of the store, whose transitions are newest first and whose waiting changes are oldest first. The
/// overview has neither servers nor calls yet.
fn summarize(records: &OverviewRecords, range: OverviewRange, now: Timestamp) -> Overview {
    let since = now - range.period * range.periods;
    let start_of = |index: i32| since + range.period * index;
    let mut periods: Vec<Period> =
        (0..range.periods).map(|index| Period { from: start_of(index), outcomes: Outcomes::default() }).collect();
    let (mut agents, mut tools) = (BTreeMap::new(), BTreeMap::new());
    let (mut totals, mut times) = (Outcomes::default(), Vec::new());
    let mut counted = HashSet::new();
    // The newest transition comes first, so a change counts by its last decision and its last outcome.
    for transition in &records.transitions {
        let Some(kind) = classify(transition) else { continue };
        if !counted.insert((transition.change_id.as_str(), kind.group())) {
            continue;
        }
        if kind.is_decision() {
            times.push(transition.at.duration_since(transition.created_at));
        }
        let index = transition.at.duration_since(since).as_secs() / range.period.as_secs().max(1);
        if let Some(period) = usize::try_from(index).ok().and_then(|index| periods.get_mut(index)) {
            kind.count(&mut period.outcomes);
        }
        kind.count(&mut totals);
        kind.count(agents.entry(transition.principal.clone()).or_default());
        kind.count(tools.entry((transition.provider.clone(), transition.tool.clone())).or_default());
    }
    Overview {
        range: range.name,
        since,
        complete: records.is_complete,
        waiting: summarize_waiting(&records.waiting_since, now),
        decision_times: summarize_times(times),
        totals,
        periods,
        agents: select_largest(agents).into_iter().map(|(name, outcomes)| AgentOutcomes { name, outcomes }).collect(),
        tools: select_largest(tools)
            .into_iter()
            .map(|((server, name), outcomes)| ToolOutcomes { server, name, outcomes })
            .collect(),
        servers_down: Vec::new(),
        calls: Vec::new(),
    }
}

/// The kind of a transition that the overview counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CountedTransition {
    Proposed,
    Approved,
    Rejected,
    Failed,
}

impl CountedTransition {
    const fn is_decision(self) -> bool {
        matches!(self, Self::Approved | Self::Rejected)
    }

    /// Returns the number of the group of the transition. Of each group, only the newest transition of a change counts.
    const fn group(self) -> u8 {
        match self {
            Self::Proposed => 0,
            Self::Approved | Self::Rejected => 1,
            Self::Failed => 2,
        }
    }

    const fn count(self, outcomes: &mut Outcomes) {
        match self {
            Self::Proposed => outcomes.proposed += 1,
            Self::Approved => outcomes.approved += 1,
            Self::Rejected => outcomes.rejected += 1,
            Self::Failed => outcomes.failed += 1,
        }
    }
}

/// Returns the kind of a transition, or `None` if the overview does not count it.
fn classify(transition: &TransitionRecord) -> Option<CountedTransition> {
    match (transition.from, transition.to) {
        (None, _) => Some(CountedTransition::Proposed),
        (Some(from), to) if from == to => None,
        (_, ChangeState::Approved) => Some(CountedTransition::Approved),
        (_, ChangeState::Rejected) => Some(CountedTransition::Rejected),
        (_, ChangeState::Failed | ChangeState::OutcomeUnknown) => Some(CountedTransition::Failed),
        _ => None,
    }
}

/// Returns the groups with the highest sums of their numbers, the largest first.
fn select_largest<K: Ord>(groups: BTreeMap<K, Outcomes>) -> Vec<(K, Outcomes)> {
    let size = |outcomes: &Outcomes| outcomes.proposed + outcomes.approved + outcomes.rejected + outcomes.failed;
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, outcomes)| std::cmp::Reverse(size(outcomes)));
    groups.truncate(MAX_GROUPS);
    groups
}

fn summarize_waiting(since: &[Timestamp], now: Timestamp) -> WaitingChanges {
    let limits = AGE_LIMITS.into_iter().map(Some).chain([None]);
    let mut ages: Vec<WaitingAge> = limits.map(|below| WaitingAge { below, count: 0 }).collect();
    for at in since {
        let age = now.duration_since(*at).as_secs();
        if let Some(bucket) = ages.iter_mut().find(|bucket| bucket.below.is_none_or(|below| age < below)) {
            bucket.count += 1;
        }
    }
    WaitingChanges { count: since.len(), oldest_at: since.first().copied(), ages }
}

fn summarize_times(mut times: Vec<SignedDuration>) -> DecisionTimes {
    times.sort_unstable();
    // The smallest time that at least this share of the decisions did not exceed.
    let quantile = |tenths: usize| {
        let rank = (times.len() * tenths).div_ceil(10).saturating_sub(1);
        times.get(rank).map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
    };
    DecisionTimes { count: times.len(), median_ms: quantile(5), p90_ms: quantile(9) }
}

fn summarize_calls(minutes: &[CallsInMinute], now: Timestamp) -> Vec<CallPeriod> {
    let current = u64::try_from(now.as_second()).unwrap_or_default() / 60 / CALL_PERIOD_MINUTES;
    let first = (current + 1).saturating_sub(CALL_PERIODS);
    (first..=current)
        .map(|period| {
            let (mut calls, mut failed, mut timed, mut micros) = (0_u64, 0_u64, 0_u64, 0_u64);
            for minute in minutes.iter().filter(|minute| minute.minute / CALL_PERIOD_MINUTES == period) {
                calls += minute.calls;
                failed += minute.failed;
                timed += minute.timed;
                micros += minute.micros;
            }
            let second = i64::try_from(period * CALL_PERIOD_MINUTES * 60).unwrap_or_default();
            let from = Timestamp::from_second(second).unwrap_or(now);
            CallPeriod { from, calls, failed, average_us: micros.checked_div(timed) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn transition(second: i64, id: &str, from: Option<ChangeState>, to: ChangeState) -> TransitionRecord {
        TransitionRecord {
            at: time_at(second),
            change_id: id.into(),
            from,
            to,
            principal: format!("agent of {id}"),
            provider: "tracker".into(),
            tool: "create_issue".into(),
            created_at: time_at(0),
        }
    }

    #[test]
    fn change_counts_once_by_its_last_decision() {
        use ChangeState::{Approved, Failed, Pending, Rejected};
        let transitions = vec![
            transition(90, "a", Some(Approved), Failed),
            transition(80, "b", Some(Pending), Rejected),
            transition(70, "a", Some(Pending), Approved),
            transition(60, "a", Some(Approved), Pending),
            transition(50, "a", Some(Pending), Approved),
            transition(40, "a", Some(Pending), Pending),
            transition(0, "b", None, Pending),
            transition(0, "a", None, Pending),
        ];
        let records =
            OverviewRecords { transitions, waiting_since: vec![time_at(-90_000), time_at(80)], is_complete: true };
        let overview = summarize(&records, RANGES[0], time_at(100));
        let totals = Outcomes { proposed: 2, approved: 1, rejected: 1, failed: 1 };
        assert_eq!((overview.totals, overview.tools[0].outcomes), (totals, totals));
        assert_eq!(overview.periods.last().map(|period| period.outcomes), Some(totals));
        assert_eq!(overview.agents[0].name, "agent of a", "the largest group is first");
        let times = (overview.decision_times.count, overview.decision_times.median_ms, overview.decision_times.p90_ms);
        assert_eq!(times, (2, Some(70_000), Some(80_000)));
        assert_eq!((overview.waiting.count, overview.waiting.oldest_at), (2, Some(time_at(-90_000))));
        assert_eq!(overview.waiting.ages.iter().map(|age| age.count).collect::<Vec<_>>(), [1, 0, 0, 1]);
    }

    #[test]
    fn empty_store_has_an_overview() {
        let overview = summarize(&OverviewRecords::default(), RANGES[1], time_at(0));
        assert_eq!((overview.periods.len(), overview.totals), (30, Outcomes::default()));
        assert_eq!((overview.decision_times.median_ms, overview.waiting.oldest_at), (None, None));
    }

    #[test]
    fn calls_are_summed_by_ten_minutes() {
        let now = Timestamp::from_second(6_000 * 60).unwrap();
        let minute = |minute, timed| CallsInMinute { minute, calls: 2, failed: 1, timed, micros: 30 * timed };
        let periods = summarize_calls(&[minute(5_000, 1), minute(5_998, 0), minute(6_000, 2)], now);
        assert_eq!((periods.len(), periods.iter().map(|period| period.calls).sum::<u64>()), (36, 4));
        let last = CallPeriod { from: now, calls: 2, failed: 1, average_us: Some(30) };
        assert_eq!((&periods[35], periods[34].average_us), (&last, None));
    }
}
