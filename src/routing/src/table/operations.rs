//! The operations of a tool that carries many, each with its own ruling.

use std::{borrow::Cow, collections::BTreeMap, iter, sync::Arc};

use serde_json::{Value, value::RawValue};

use super::{
    ToolRoute,
    ruling::{RuledCalls, RuledTool},
};
use countersign_domain::{
    changes::{Proposer, qualified_operation},
    policy::{Decision, OperationStatus, Policy, Requester, Ruling, ToolOperation},
    principal::Principal,
    recipes::Dispatcher,
};
use countersign_protocol::outline::fold_case;
use countersign_provider::ToolDef;

/// Selects the ruling and the route by the operation that a call names.
impl ToolRoute {
    /// Returns the policy's ruling on a call with these arguments.
    #[must_use]
    pub fn ruling_for(&self, arguments: &RawValue) -> Cow<'_, Ruling> {
        if let Some(operations) = &self.operations {
            return match operations.find(arguments) {
                Ok(route) => Cow::Borrowed(&route.ruling),
                Err(unknown) => Cow::Owned(operations.unknown_ruling(self, unknown)),
            };
        }
        match &self.read_ruling {
            Some(read_ruling) if self.only_reads(arguments) => Cow::Borrowed(read_ruling),
            _ => Cow::Borrowed(&self.ruling),
        }
    }

    /// Returns the policy's decision on such a call by the proposer of a change, in the kind of session that proposed it.
    #[must_use]
    pub fn decide_for_proposer(&self, proposer: &Proposer, arguments: &RawValue) -> Decision {
        let principal = proposer.to_principal();
        self.ruling_for(arguments).decide(&Requester::for_proposer(proposer, &principal), arguments)
    }

    fn only_reads(&self, arguments: &RawValue) -> bool {
        match (&self.sql, self.def.read_only_when) {
            (Some(sql), _) => sql.is_read(&self.def.title, arguments.get()),
            (None, Some(reads)) => reads(arguments),
            (None, None) => false,
        }
    }

    /// Iterates over the tool and its known operations.
    pub fn with_operations(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        iter::once(self).chain(self.known_operations())
    }

    /// Iterates over the operations that the recipe of the tool names, as routes whose name is `tool/operation`.
    pub fn known_operations(&self) -> impl Iterator<Item = &Arc<Self>> {
        self.operations.iter().flat_map(OperationRoutes::routes)
    }

    /// Returns the name by which rules refer to a call: that of the tool, or `tool/operation`.
    pub fn qualified_name(&self, arguments: &RawValue) -> Cow<'_, str> {
        match self.operations.as_ref().map(|operations| operations.find(arguments)) {
            None => Cow::Borrowed(&self.name),
            Some(Ok(route)) => Cow::Borrowed(&route.name),
            Some(Err(unknown)) => Cow::Owned(qualified_operation(&self.name, &unknown.name)),
        }
    }

    /// Returns the route of the operation that a call names, or `None` if the tool has no operations or does not know it.
    pub fn operation_of(&self, arguments: &RawValue) -> Option<&Arc<Self>> {
        self.operations.as_ref()?.find(arguments).ok()
    }

    /// Returns `true` if an argument of the tool names an operation.
    pub fn has_operations(&self) -> bool {
        self.operations.is_some()
    }

    /// Returns `true` if a call may become a change.
    pub fn may_review(&self) -> bool {
        self.ruling.may_review() || self.operations.as_ref().is_some_and(OperationRoutes::may_review)
    }
}

/// The operations of a tool.
pub struct OperationRoutes {
    dispatcher: Dispatcher,
    /// The routes of the known operations.
    routes: BTreeMap<String, Arc<ToolRoute>>,
    /// Decides on unknown operations.
    policy: Policy,
}

impl OperationRoutes {
    /// Returns the operations, or `None` if the recipe of the tool names none.
    pub(super) fn new(tool: RuledTool<'_>, pending_schema: &Arc<Value>) -> Option<Self> {
        let RuledTool { policy, provider, def, .. } = tool;
        let dispatcher = provider.as_provider().recipe(&def.name)?.dispatcher.clone()?;
        let route = |operation: &String| {
            let calls =
                RuledCalls::Operation(ToolOperation { name: operation.clone(), status: OperationStatus::Known });
            let ruled = tool.rule(calls);
            let title = format!("{} / {operation}", def.title);
            let named = ToolDef { name: qualified_operation(&def.name, operation), title, ..def.clone() };
            let pending_schema = ruled.1.may_review().then(|| Arc::clone(pending_schema));
            let route = ToolRoute {
                is_operation: true,
                known_tool: tool.known_tool(Some(operation)),
                pending_schema,
                ..ToolRoute::new(provider, named, tool.hash.to_owned(), ruled)
            };
            (operation.clone(), Arc::new(route))
        };
        let routes = dispatcher.operations.keys().map(route).collect();
        Some(Self { dispatcher, routes, policy: policy.clone() })
    }

    /// Iterates over the known operations.
    fn routes(&self) -> impl Iterator<Item = &Arc<ToolRoute>> {
        self.routes.values()
    }

    /// Iterates over the rulings on the known operations.
    pub(super) fn rulings(&self) -> impl Iterator<Item = &Ruling> {
        self.routes().map(|route| &route.ruling)
    }

    /// Returns the route of the operation that a call names, or an operation that is not known.
    fn find(&self, arguments: &RawValue) -> Result<&Arc<ToolRoute>, ToolOperation> {
        let name = self.dispatcher.operation_of(arguments).unwrap_or_default();
        self.routes.get(&name).ok_or_else(|| {
            let status = if name.is_empty() { OperationStatus::Unclear } else { OperationStatus::Unknown };
            ToolOperation { name, status }
        })
    }

    /// Returns the ruling on a call of an operation that is not known, which rules may still deny by its name.
    fn unknown_ruling(&self, tool: &ToolRoute, operation: ToolOperation) -> Ruling {
        // A server could read such a name as that of the known operation.
        let is_similar = |(known, _): &(&String, &Arc<ToolRoute>)| are_similar(known, &operation.name);
        let similar = self.routes.iter().filter(is_similar).map(|(_, route)| route.ruling.clone()).collect::<Vec<_>>();
        let tool = RuledTool { policy: &self.policy, provider: &tool.provider, def: &tool.def, hash: &tool.hash };
        let ruling = tool.rule(RuledCalls::Operation(operation)).1;
        similar.into_iter().fold(ruling, Ruling::or_stricter)
    }

    pub(super) fn may_review(&self) -> bool {
        self.rulings().any(Ruling::may_review)
    }

    pub(super) fn are_listed_to(&self, principal: &Principal) -> bool {
        self.rulings().any(|ruling| ruling.is_listed_to(principal))
    }
}

/// Returns `true` if two names are the same apart from case, and from spaces and punctuation at the ends.
fn are_similar(a: &str, b: &str) -> bool {
    let folded =
        |name: &str| -> String { name.trim_matches(|c: char| !c.is_alphanumeric()).chars().map(fold_case).collect() };
    folded(a) == folded(b)
}
