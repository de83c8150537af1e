//! The lists of servers as one principal sees them, where each person uses an account of their own.

use std::{collections::HashMap, sync::Arc};

use super::RouteTarget;
use countersign_domain::principal::Principal;
use countersign_upstream::catalog::UsableDefinitions;

/// The lists that one principal reads. Those of the principal's own account at a server are looked up once. While they are not
/// known, everything counts as listed.
pub struct PersonalLists<'a> {
    pub principal: &'a Principal,
    by_provider: HashMap<usize, Option<Arc<UsableDefinitions>>>,
}

impl<'a> PersonalLists<'a> {
    pub fn new(principal: &'a Principal) -> Self {
        Self { principal, by_provider: HashMap::new() }
    }

    /// Returns the lists of the principal's own account at a server, or `None` if everybody has the same there or they are not
    /// known.
    fn account_lists(&mut self, provider: &RouteTarget) -> Option<&UsableDefinitions> {
        let upstream = provider.upstream().filter(|upstream| upstream.has_personal_accounts())?;
        let lists = self.by_provider.entry(provider.identity());
        lists.or_insert_with(|| upstream.account_lists(self.principal)).as_deref()
    }

    pub fn has_tool(&mut self, provider: &RouteTarget, name: &str) -> bool {
        self.account_lists(provider).is_none_or(|own| own.tool_names.contains(name))
    }

    pub fn has_prompt(&mut self, provider: &RouteTarget, name: &str) -> bool {
        self.account_lists(provider).is_none_or(|own| own.prompt_names.contains(name))
    }

    pub fn has_template(&mut self, provider: &RouteTarget, uri: &str) -> bool {
        self.account_lists(provider).is_none_or(|own| own.template_uris.contains(uri))
    }
}
