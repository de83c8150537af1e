//! The rules of the policy in force, with what each of them decided.

use std::collections::{BTreeMap, BTreeSet};

use actix_web::{HttpResponse, web};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Caller, Problem, json_response};
use countersign_config::show::rule_settings;
use countersign_domain::policy::{DEFAULT_IDENTITY, Policy, Verdict};
use countersign_protocol::ErrorKind;
use countersign_routing::RouteTable;
use countersign_rulings::{rule_counts::RuleCounts, standing_rules::StandingRuleService};
use countersign_store::rule_counts::VerdictTotals;

/// The maximum number of tools that are listed for a rule.
const MAX_TOOLS: usize = 30;

/// A key of a rule with its value as YAML.
#[derive(Serialize, ToSchema)]
struct RuleSetting {
    key: &'static str,
    value: String,
}

/// The tools whose calls a rule may decide.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = RuleTools)]
struct CoveredTools {
    count: usize,
    /// The first names, in alphabetical order.
    names: Vec<String>,
}

impl CoveredTools {
    fn new(names: &BTreeSet<&str>) -> Self {
        Self { count: names.len(), names: names.iter().take(MAX_TOOLS).map(|name| (*name).to_owned()).collect() }
    }
}

/// A rule of the policy.
#[derive(Serialize, ToSchema)]
struct PolicyRule {
    /// The name, or `rule 3` for the third rule.
    label: String,
    then: Verdict,
    /// The other keys that are set, as in the file.
    settings: Vec<RuleSetting>,
    decided: VerdictTotals,
    tools: CoveredTools,
}

/// The policy in force.
#[derive(Serialize, ToSchema)]
struct PolicyInForce {
    /// `enforce` or `simulate`.
    mode: &'static str,
    /// `policy.default`
    default: &'static str,
    /// The calls that the default decided.
    decided: VerdictTotals,
    /// The tools for which the default may decide.
    tools: CoveredTools,
    /// The rules, in order.
    rules: Vec<PolicyRule>,
}

/// Returns the rules of the policy in force, in order, with what each decided in the last 30 days.
///
/// The counts are those of all gateways of the store. A call that a standing rule decided counts only for that rule.
#[utoipa::path(get, path = "/api/policy", operation_id = "getPolicy",
    responses((status = 200, description = "The policy in force", body = PolicyInForce)))]
pub async fn get(
    _: Caller,
    standing_rules: web::Data<StandingRuleService>,
    counts: web::Data<RuleCounts>,
) -> Result<HttpResponse, Problem> {
    let totals = counts.totals().await?;
    let table = standing_rules.routes().load_full();
    let policy = table.policy.as_ref();
    let policy = policy.ok_or_else(|| Problem::new(ErrorKind::Internal, "there is no policy yet"))?;
    Ok(json_response(&policy_in_force(policy, &table, &totals)))
}

fn policy_in_force(policy: &Policy, table: &RouteTable, totals: &BTreeMap<String, VerdictTotals>) -> PolicyInForce {
    let mut tools_by_rule: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut default_tools: BTreeSet<&str> = BTreeSet::new();
    for route in table.tools() {
        for subject in route.with_operations() {
            for label in subject.ruling.rules() {
                tools_by_rule.entry(label).or_default().insert(&route.name);
            }
            if subject.ruling.default_decision().is_some() && !subject.def.self_service {
                default_tools.insert(&route.name);
            }
        }
    }
    let decided = |identity: &str| totals.get(identity).copied().unwrap_or_default();
    let (default, mode, review) = policy.defaults();
    let rules = policy.rules().iter().enumerate().map(|(index, rule)| PolicyRule {
        label: rule.label.to_string(),
        then: rule.then,
        settings: rule_settings(rule, index + 1, review)
            .into_iter()
            .filter(|(key, _)| !matches!(*key, "name" | "then"))
            .map(|(key, value)| RuleSetting { key, value })
            .collect(),
        decided: decided(&rule.identity),
        tools: CoveredTools::new(tools_by_rule.get(&*rule.label).unwrap_or(&BTreeSet::new())),
    });
    PolicyInForce {
        mode: mode.into(),
        default: default.as_str(),
        decided: decided(DEFAULT_IDENTITY),
        tools: CoveredTools::new(&default_tools),
        rules: rules.collect(),
    }
}
