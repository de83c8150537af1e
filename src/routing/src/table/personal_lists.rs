//! The lists of servers as one principal sees them, where each person uses an account of their own.

use std::collections::HashMap;

use super::RouteTarget;
use countersign_domain::principal::Principal;
use countersign_upstream::server::accounts::AccountLists;

/// The lists that one principal reads. Those of the principal's own account at a server are looked up once.
pub struct PersonalLists<'a> {
    pub principal: &'a Principal,
    by_provider: HashMap<usize, AccountLists>,
}

impl<'a> PersonalLists<'a> {
    #[must_use]
    pub fn new(principal: &'a Principal) -> Self {
        Self { principal, by_provider: HashMap::new() }
    }

    /// Returns the lists at a server, or `None` if everybody has the same there.
    fn account_lists(&mut self, provider: &RouteTarget) -> Option<&AccountLists> {
        let upstream = provider.upstream().filter(|upstream| upstream.has_personal_accounts())?;
        let lists = self.by_provider.entry(provider.identity());
        Some(lists.or_insert_with(|| upstream.account_lists(self.principal)))
    }

    pub fn has_tool(&mut self, provider: &RouteTarget, name: &str) -> bool {
        self.account_lists(provider).is_none_or(|own| own.has_tool(name))
    }

    pub fn has_prompt(&mut self, provider: &RouteTarget, name: &str) -> bool {
        self.account_lists(provider).is_none_or(|own| own.has_prompt(name))
    }

    pub fn has_template(&mut self, provider: &RouteTarget, uri: &str) -> bool {
        self.account_lists(provider).is_none_or(|own| own.has_template(uri))
    }
}
