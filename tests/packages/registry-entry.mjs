// Checks server.json by the rules of the MCP Registry, as far as they concern Countersign's packages: those of its schema
// 2025-12-11, and those that it applies beyond the schema when an entry is published.

const VERSION = /^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$/;
const SHORT_TEXT = /^\S.{0,99}$/;
const TEXT = /^\S/;
const HTTPS_URL = /^https:\/\/[^\s/]+\.[^\s/]+(\/\S*)?$/;

// A shape is the pattern of a text, `Boolean`, the shape of a list's items in brackets, the shapes of an object's keys, or a
// function that chooses the shape for a value. A key with a question mark may be missing, and no other key is allowed.
const INPUT = { 'description?': TEXT, 'isRequired?': Boolean, 'isSecret?': Boolean };
const ARGUMENTS = {
    positional: { ...INPUT, type: /^positional$/, value: TEXT },
    named: { ...INPUT, type: /^named$/, name: /^[^\s<>$]+$/, 'value?': TEXT }
};
const ARGUMENT = ({ type }) => ARGUMENTS[type] ?? { type: /^(positional|named)$/ };

const PACKAGE = {
    transport: { type: /^stdio$/ },
    'packageArguments?': [ARGUMENT],
    'environmentVariables?': [{ ...INPUT, name: /^\w+$/ }]
};
const PACKAGES = {
    npm: {
        registryType: /^npm$/,
        'registryBaseUrl?': /^https:\/\/registry\.npmjs\.org$/,
        identifier: /^(@[a-z0-9._-]+\/)?[a-z0-9._-]+$/,
        version: VERSION,
        runtimeHint: /^npx$/
    },
    pypi: {
        registryType: /^pypi$/,
        'registryBaseUrl?': /^https:\/\/pypi\.org$/,
        identifier: /^[A-Za-z0-9._-]+$/,
        version: VERSION,
        runtimeHint: /^uvx$/
    },
    // The version of an image is its tag.
    oci: {
        registryType: /^oci$/,
        identifier: /^(ghcr|docker|quay)\.io\/[a-z0-9._/-]+:\d+\.\d+\.\d+[\w.-]*$/,
        runtimeHint: /^docker$/,
        'runtimeArguments?': [ARGUMENT]
    },
    // The version of a bundle is in its address. Some versions of the registry refuse another one.
    mcpb: {
        registryType: /^mcpb$/,
        identifier: /^https:\/\/github\.com\/[\w.-]+\/[\w.-]+\/releases\/download\/[^\s/]+\/[^\s/]+\.mcpb$/,
        fileSha256: /^[0-9a-f]{64}$/
    }
};

const ENTRY = {
    $schema: /^https:\/\/static\.modelcontextprotocol\.io\/schemas\/2025-12-11\/server\.schema\.json$/,
    name: /^(?=.{3,200}$)[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?\/[a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?$/,
    title: SHORT_TEXT,
    description: SHORT_TEXT,
    version: VERSION,
    repository: { url: /^https:\/\/github\.com\/[\w.-]+\/[\w.-]+$/, source: /^github$/ },
    websiteUrl: HTTPS_URL,
    packages: [({ registryType }) => (PACKAGES[registryType] ? { ...PACKAGE, ...PACKAGES[registryType] } : { registryType: /^(npm|pypi|oci|mcpb)$/ })]
};

/** Returns the faults of an entry, each of which begins with the path of the wrong value. */
export function faultsOfEntry(entry) {
    return faultsOf('', entry, ENTRY);
}

function faultsOf(where, value, shape) {
    const fault = [`${where || 'entry'} is ${JSON.stringify(value)}`];
    if (shape instanceof RegExp) return typeof value === 'string' && shape.test(value) ? [] : fault;
    if (shape === Boolean) return typeof value === 'boolean' ? [] : fault;
    if (Array.isArray(shape)) return Array.isArray(value) ? value.flatMap((item, at) => faultsOf(`${where}[${at}]`, item, shape[0])) : fault;
    if (value === null || typeof value !== 'object' || Array.isArray(value)) return fault;
    if (typeof shape === 'function') return faultsOf(where, value, shape(value));
    const path = key => (where ? `${where}.${key}` : key);
    const known = Object.keys(shape).map(key => key.replace('?', ''));
    const unknown = Object.keys(value).filter(key => !known.includes(key)).map(key => `${path(key)} is not allowed`);
    const wrong = Object.entries(shape).flatMap(([key, inner]) => {
        const name = key.replace('?', '');
        return name in value || name === key ? faultsOf(path(name), value[name], inner) : [];
    });
    return [...unknown, ...wrong];
}
