//! Describes tools to the policy, including the hash of a definition and the reviewers' decision about it, and asks the policy
//! about other subjects.

use serde_json::{Value, json};

use super::RouteTarget;
use countersign_domain::{
    changes::qualified_operation,
    policy::{
        AccessDecision, DefinitionStatus, OperationStatus, Policy, Requester, Ruling, Subject, ToolFacts,
        ToolOperation,
        known_reads::KnownTool,
        pins::{AcceptedReads, Definition},
        subjects::{Refusal, SubjectProvider},
    },
};
use countersign_protocol::{annotations::ToolAnnotations, arguments::canonical_text_hash, json::replace_strings};
use countersign_provider::ToolDef;

/// Returns the definition in the form that a reviewer accepts.
pub fn definition(def: &ToolDef) -> Definition {
    let text = match &def.raw {
        Some(raw) => raw.get().to_owned(),
        None => module_definition(def).to_string(),
    };
    Definition { name: def.name.clone(), hash: def.definition_hash(), text: text.into() }
}

fn module_definition(def: &ToolDef) -> Value {
    let mut value = json!({
        "name": def.name, "title": def.title, "description": def.description, "inputSchema": def.input_schema,
    });
    if let Some(schema) = &def.output_schema {
        value["outputSchema"] = schema.clone();
    }
    value["annotations"] = json!(def.annotations);
    value
}

/// Pins the definitions of a server that is seen for the first time. An empty list pins nothing, because a server that was not
/// reached yet has an empty list too.
pub(super) fn pin_first_seen(policy: &Policy, provider: &RouteTarget, tools: &[ToolDef]) {
    if provider.is_module() || policy.pins().has_server(provider.name()) {
        return;
    }
    let definitions: Vec<Definition> = tools.iter().filter(|def| !def.self_service).map(definition).collect();
    if !definitions.is_empty() {
        policy.observe(provider.name(), &definitions);
    }
}

/// The calls of a tool that a ruling is about.
#[derive(Clone, Debug)]
pub(super) enum RuledCalls {
    All,
    /// Calls that only read.
    Reads,
    Operation(ToolOperation),
}

/// A tool with everything that decides how the policy rules on it.
#[derive(Clone, Copy)]
pub(super) struct RuledTool<'a> {
    pub policy: &'a Policy,
    pub provider: &'a RouteTarget,
    pub def: &'a ToolDef,
    /// `sha256:…` of the definition.
    pub hash: &'a str,
}

impl RuledTool<'_> {
    /// Returns the entry of the tool, or of one of its operations, in the list of the server's known reads.
    pub fn known_tool(&self, operation: Option<&str>) -> Option<KnownTool> {
        let provider = self.provider.as_provider();
        let raw = self.def.raw.as_ref()?.get();
        let own_name = self.def.name.strip_prefix(provider.exposed_name("").as_str())?;
        let listed_name = operation.map_or(own_name.to_owned(), |operation| qualified_operation(own_name, operation));
        provider.known_reads()?.find(&listed_name, || {
            let own_definition =
                replace_strings(raw, &["name"], |_, name| (name != own_name).then(|| own_name.to_owned()));
            canonical_text_hash(own_definition.as_deref().unwrap_or(raw))
        })
    }

    /// Returns `true` if reviewers decide about the definition. The gateway vouches for its own tools.
    fn is_reviewed(&self) -> bool {
        !self.provider.is_module() && !self.def.self_service
    }

    /// Returns the calls that a reviewer accepted as reads under this name, which is that of the tool or of one of its
    /// operations.
    pub fn accepted_reads(&self, name: &str) -> AcceptedReads {
        let fingerprint = self.provider.as_provider().target_fingerprint();
        let pins = self.policy.pins();
        let pin = pins.pin(self.provider.name(), name).filter(|_| self.is_reviewed());
        pin.map_or(AcceptedReads::None, |pin| pin.accepted_reads(fingerprint, self.hash))
    }

    /// Returns the facts about these calls of the tool, and the part of the policy's decision that is known before any call.
    pub fn rule(&self, calls: RuledCalls) -> (ToolFacts, Ruling) {
        let Self { policy, provider, def, hash } = *self;
        let fingerprint = provider.as_provider().target_fingerprint();
        let (only_reads, operation) = match calls {
            RuledCalls::All => (false, None),
            RuledCalls::Reads => (true, None),
            RuledCalls::Operation(operation) => (false, Some(operation)),
        };
        let mut definition_status = DefinitionStatus::Module;
        let mut reads = self.accepted_reads(&def.name);
        if self.is_reviewed() {
            let status = |name: &str| policy.pins().status((provider.name(), fingerprint), name, hash);
            definition_status = status(&def.name);
            // An operation can be accepted alone, unless the definition of the tool is new or has changed.
            let known_operation = operation
                .as_ref()
                .filter(|operation| operation.status == OperationStatus::Known && definition_status.mark().is_none());
            let name = known_operation.map(|operation| qualified_operation(&def.name, &operation.name));
            if let Some(name) = name.filter(|name| status(name) == DefinitionStatus::Accepted) {
                definition_status = DefinitionStatus::Accepted;
                if reads == AcceptedReads::None {
                    reads = self.accepted_reads(&name);
                }
            }
        }
        let annotations = match reads {
            _ if only_reads => ToolAnnotations { read_only_hint: true, destructive_hint: false, ..def.annotations },
            AcceptedReads::All => ToolAnnotations { read_only_hint: true, destructive_hint: false, ..def.annotations },
            // The reviewer vouched for some calls only, so the tool does not only read, whatever it declares.
            AcceptedReads::Sql => ToolAnnotations { read_only_hint: false, ..def.annotations },
            AcceptedReads::None => def.annotations,
        };
        let facts = ToolFacts {
            name: def.name.clone(),
            operation,
            server: provider.name().to_owned(),
            annotations,
            hash: hash.to_owned(),
            server_fingerprint: fingerprint.to_owned(),
            definition_status,
            server_is_trusted: provider.as_provider().has_trusted_annotations(),
            // Definitions that an upstream wrote are never the gateway's own.
            self_service: def.self_service && def.raw.is_none(),
        };
        let ruling = policy.ruling(&facts);
        (facts, ruling)
    }
}

/// Returns the refusal of a subject by the policy, if there is one, whether or not the refusal is enforced.
pub fn find_refusal(
    policy: &Policy,
    provider: &RouteTarget,
    subject: Subject<'_>,
    requester: &Requester<'_>,
) -> Option<Refusal> {
    let name = provider.name();
    let subject_provider =
        if provider.is_module() { SubjectProvider::Module(name) } else { SubjectProvider::Upstream(name) };
    match policy.decide_access(subject, subject_provider, requester) {
        AccessDecision::Refused(refusal) => Some(refusal),
        AccessDecision::Allowed | AccessDecision::NoRule => None,
    }
}
