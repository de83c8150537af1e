//! Cache hints for the lists of providers.

use countersign_exchange::reply::CacheHint;
use countersign_routing::RouteTable;

/// Returns the hint for a list of everything. Upstreams may change their lists at any time, and the list lacks the
/// entries of an upstream that was never reached.
#[must_use]
fn for_list(table: &RouteTable) -> CacheHint {
    match (table.has_upstreams(), table.is_complete()) {
        (false, _) => CacheHint::STATIC,
        (true, true) => CacheHint { ttl_ms: 5_000, public: true },
        (true, false) => CacheHint { ttl_ms: 0, public: true },
    }
}

/// Returns the hint for a list without the resources or prompts that the principal may not use.
#[must_use]
pub fn for_filtered_list(table: &RouteTable) -> CacheHint {
    let hint = for_list(table);
    CacheHint { public: hint.public && table.refusing_policy().is_none(), ..hint }
}

/// Returns the hint for `tools/list`, which leaves out tools that the principal may not call.
#[must_use]
pub fn for_tools(table: &RouteTable) -> CacheHint {
    CacheHint { public: !table.varies_by_principal, ..for_list(table) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Gateway;
    use countersign_provider::testing::{FakeProvider, tool};

    #[actix::test]
    async fn list_that_varies_by_principal_is_cached_privately() {
        let admins = "policy: { default: allow, rules: [{ tools: b, roles: [agent], then: deny }] }";
        let nobody = "policy: { default: allow, rules: [{ tools: b, then: deny }] }";
        for (policy, public) in [("policy: { default: allow }", true), (nobody, true), (admins, false)] {
            let gateway = Gateway::new(policy).await;
            let fake = FakeProvider::new("f");
            fake.tools.lock().unwrap().extend([tool("a", &json!({})), tool("b", &json!({}))]);
            gateway.offer_module(fake).await;
            let table = gateway.server.routing.routes.load();
            assert_eq!(for_tools(&table), CacheHint { public, ..CacheHint::STATIC }, "{policy}");
        }
    }
}
