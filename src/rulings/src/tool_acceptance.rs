//! What upstream servers say of their tools, and what reviewers said to that: lists for people, acceptance,
//! revocation.

use std::{collections::HashMap, sync::Arc};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use countersign_domain::{
    policy::{Mark, Standing, Verdict, pins::Definition},
    principal::Principal,
};
use countersign_feed::Feed;
use countersign_protocol::{ErrorKind, McpError, annotations::ToolAnnotations};
use countersign_routing::{
    ruling::definition,
    table::{Published, RouteTable, ToolRoute},
};
use countersign_store::{PinStore, WriteError};

/// Builds the route table anew with the pins as they are.
pub type Rebuild = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Tools in one acceptance.
pub const MAX_TOOLS: usize = 20_000;

/// A tool, as people see it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolInfo {
    /// As clients see it.
    pub name: String,
    pub title: String,
    pub description: String,
    /// `allow`, `review` or `deny` for every call, or `depends`.
    pub verdict: &'static str,
    /// Why, where it is the same for every call.
    pub reason: Option<String>,
    /// The rules that decide, in order; empty where `policy.default` does.
    pub rules: Vec<String>,
    /// What the tool says of itself.
    pub annotations: ToolAnnotations,
    pub standing: Standing,
    /// Why it is reviewed whatever else is said of it.
    pub mark: Option<Mark>,
    /// It says that it only reads, and that does not count yet.
    pub claims_read: bool,
    /// Of the definition; an acceptance names it.
    pub hash: String,
    /// The whole definition: JSON, as it was written.
    pub definition: Arc<str>,
    /// The definition that was accepted or first seen, where the present one is another. A changed tool without it is
    /// of another command or address than the one that it was accepted of.
    pub previous: Option<Arc<str>>,
    pub accepted_by: Option<String>,
    pub accepted_at: Option<Timestamp>,
    /// A reviewer lets it run without review.
    pub let_run: Option<LetRun>,
    /// A reviewer may let it run without review: `policy.default` decides on its calls, and a review of them asks for one
    /// approval.
    pub may_let_run: bool,
}

/// By whom a tool was let run without review, and why.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LetRun {
    /// The standing rule, which can be revoked.
    pub rule: String,
    pub by: String,
    pub at: Timestamp,
    pub reason: Option<String>,
}

/// How many tools of a provider wait for somebody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Came later than the server, and nobody accepted them.
    pub new: usize,
    /// Are others than those that were accepted or first seen.
    pub changed: usize,
    /// Say that they only read, which nobody accepted.
    pub reads: usize,
}

/// A definition that somebody was shown.
#[derive(Clone, Debug)]
pub struct Shown {
    pub name: String,
    pub hash: String,
}

/// See the module's page.
pub struct Definitions {
    routes: Arc<Published>,
    pins: Arc<PinStore>,
    rebuild: Rebuild,
    feed: Feed,
}

/// The event of definitions that were `accepted` or `revoked`.
#[must_use]
pub fn moved(provider: &str, what: &str, tools: &[&str], by: Option<&str>) -> Value {
    /// Names in one event; how many there are is said as well.
    const NAMED: usize = 20;
    json!({
        "type": "provider.changed", "at": Timestamp::now().to_string(), "provider": provider,
        "actor": by, "what": what, "tools": tools.get(..NAMED).unwrap_or(tools), "count": tools.len(),
    })
}

impl Definitions {
    #[must_use]
    pub fn new(routes: Arc<Published>, pins: Arc<PinStore>, rebuild: Rebuild, feed: Feed) -> Self {
        Self { routes, pins, rebuild, feed }
    }

    /// The tools of a provider, in the order of its list; `None` where there is no such provider.
    #[must_use]
    pub fn tools(&self, provider: &str) -> Option<Vec<ToolInfo>> {
        let table = self.routes.load_full();
        table.provider(provider).map(|_| of(&table, provider).map(|route| self.info(route)).collect())
    }

    /// What waits for somebody, by provider; providers of which nothing does are left out.
    #[must_use]
    pub fn waiting(&self) -> HashMap<String, Waiting> {
        let mut all: HashMap<String, Waiting> = HashMap::new();
        for route in self.routes.load().tools() {
            let claims = claims_read(route);
            if route.standing.mark().is_none() && !claims {
                continue;
            }
            let waiting = all.entry(route.provider.name().to_owned()).or_default();
            match route.standing {
                Standing::New => waiting.new += 1,
                Standing::Changed => waiting.changed += 1,
                _ => waiting.reads += 1,
            }
        }
        all
    }

    /// Accepts definitions as they were shown: all of them, or none.
    ///
    /// # Errors
    /// `NOT_FOUND` for a provider that is none or a module, `VERSION_CONFLICT` where a definition is another by now (with
    /// the tools' names in `data.tools`), `STORE_UNAVAILABLE`.
    pub async fn accept(&self, provider: &str, shown: &[Shown], reviewer: &Principal) -> Result<(), McpError> {
        let (target, definitions) = self.current(provider, shown)?;
        self.pins.accept((provider, &target), &definitions, &reviewer.name).await.map_err(|error| unwritten(&error))?;
        tracing::info!(%provider, tools = definitions.len(), by = %reviewer.name, "definitions were accepted");
        self.moved(provider, "accepted", shown, reviewer).await;
        Ok(())
    }

    /// Takes acceptances back.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub async fn revoke(&self, provider: &str, shown: &[Shown], reviewer: &Principal) -> Result<(), McpError> {
        let (_, definitions) = self.current(provider, shown)?;
        self.pins.revoke(provider, &definitions, &reviewer.name).await.map_err(|error| unwritten(&error))?;
        tracing::info!(%provider, tools = definitions.len(), by = %reviewer.name, "acceptances were revoked");
        self.moved(provider, "revoked", shown, reviewer).await;
        Ok(())
    }

    async fn moved(&self, provider: &str, what: &str, shown: &[Shown], reviewer: &Principal) {
        (self.rebuild)().await;
        let tools: Vec<&str> = shown.iter().map(|shown| shown.name.as_str()).collect();
        self.feed.publish_session(&moved(provider, what, &tools, Some(&reviewer.name)));
    }

    /// What is behind the provider's name, and the definitions, as one route table has them.
    fn current(&self, provider: &str, shown: &[Shown]) -> Result<(String, Vec<Definition>), McpError> {
        let table = self.routes.load_full();
        let Some(behind) = table.provider(provider) else {
            return Err(McpError::new(ErrorKind::NotFound, "there is no server of this name"));
        };
        let routes: HashMap<&str, &Arc<ToolRoute>> = of(&table, provider)
            .filter(|r| !r.provider.is_module())
            .map(|route| (route.name.as_str(), route))
            .collect();
        let mut definitions = Vec::with_capacity(shown.len());
        let mut others = Vec::new();
        for Shown { name, hash } in shown {
            match routes.get(name.as_str()).filter(|route| route.hash == *hash) {
                Some(route) => definitions.push(definition(&route.def)),
                None => others.push(name.chars().take(128).collect::<String>()),
            }
        }
        if others.is_empty() {
            return Ok((behind.target().to_owned(), definitions));
        }
        others.truncate(20);
        let message = "a tool's definition is another than the one that was shown, or the tool is gone";
        Err(McpError::new(ErrorKind::VersionConflict, message).with("tools", others))
    }

    fn info(&self, route: &ToolRoute) -> ToolInfo {
        let pins = self.pins.snapshot();
        let pin = pins.pin(route.provider.name(), &route.name);
        let accepted = pin.and_then(|pin| pin.accepted.as_ref()).filter(|_| route.standing == Standing::Accepted);
        let fixed = route.ruling.fixed();
        let let_run = route.ruling.let_run().map(|rule| LetRun {
            rule: rule.id.clone(),
            by: rule.created_by.clone(),
            at: rule.created_at,
            reason: rule.comment.clone(),
        });
        let may_let_run = route.standing.mark().is_none()
            && route
                .ruling
                .by_default()
                .is_some_and(|decision| decision.verdict == Verdict::Review && decision.terms.one_word_is_enough());
        let (verdict, reason) = match (fixed, &let_run) {
            (Some(decision), _) => (decision.verdict.as_str(), Some(decision.reason.to_string())),
            (None, Some(let_run)) => {
                let why = let_run.reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
                (Verdict::Allow.as_str(), Some(format!("{} lets it run without review{why}", let_run.by)))
            }
            (None, None) => ("depends", None),
        };
        let rules = match fixed {
            Some(decision) => decision.rule.iter().map(|rule| rule.to_string()).collect(),
            None => route.ruling.rules().map(str::to_owned).collect(),
        };
        let def = definition(&route.def);
        // The same text where it is the program behind the name that is another.
        let previous = pin.filter(|_| route.standing == Standing::Changed).and_then(|pin| pin.text.clone());
        let previous = previous.filter(|text| *text != def.text);
        ToolInfo {
            name: route.name.clone(),
            title: route.def.title.clone(),
            description: route.def.description.clone(),
            verdict,
            reason,
            rules,
            annotations: route.def.annotations,
            standing: route.standing,
            mark: route.standing.mark(),
            claims_read: claims_read(route),
            hash: def.hash,
            definition: def.text,
            previous,
            accepted_by: accepted.map(|accepted| accepted.by.clone()),
            accepted_at: accepted.map(|accepted| accepted.at),
            may_let_run: may_let_run && let_run.is_none(),
            let_run,
        }
    }
}

/// Whether accepting the definition would make it count as a read.
fn claims_read(route: &ToolRoute) -> bool {
    let denied = route.ruling.fixed().is_some_and(|decision| decision.verdict == Verdict::Deny);
    route.standing == Standing::Seen
        && route.def.annotations.read_only_hint
        && !route.provider.trust_annotations()
        && !denied
}

fn of<'a>(table: &'a RouteTable, provider: &'a str) -> impl Iterator<Item = &'a Arc<ToolRoute>> {
    table.tools().iter().filter(move |route| route.provider.name() == provider)
}

fn unwritten(error: &WriteError) -> McpError {
    tracing::error!(%error, "what a reviewer said of definitions could not be stored");
    error.told("it could not be stored; nothing was accepted or revoked")
}
