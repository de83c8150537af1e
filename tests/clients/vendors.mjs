// The MCP servers of vendors that the tests install (tests/fixtures/vendors), each on a fake of its vendor's API, and stand-ins for hosted ones.
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';

import { startConfluence } from '../fixtures/fakes/confluence.mjs';
import { startGoogle } from '../fixtures/fakes/google.mjs';
import { startGitLab } from '../fixtures/fakes/gitlab.mjs';
import { startJira } from '../fixtures/fakes/jira.mjs';
import { kubeconfig, startKubernetes } from '../fixtures/fakes/kubernetes.mjs';
import { startMongoDb } from '../fixtures/fakes/mongodb.mjs';
import { startNotion } from '../fixtures/fakes/notion.mjs';
import { startSlack } from '../fixtures/fakes/slack.mjs';
import { startHostedAtlassian } from '../fixtures/stand-ins/atlassian.mjs';
import { startLinear } from '../fixtures/stand-ins/linear.mjs';
import { startHostedNotion } from '../fixtures/stand-ins/notion.mjs';
import { startHostedSlack } from '../fixtures/stand-ins/slack.mjs';
import { startStripe } from '../fixtures/stand-ins/stripe.mjs';
import { startShopPage } from '../fixtures/fakes/shop-page.mjs';
import { command } from './fixture.mjs';
import { repository } from './gateway.mjs';

const packageFile = file => path.join(repository, 'tests/fixtures/vendors/node_modules', file);
const cache = path.join(repository, 'tests/.cache');

/** Starts a fake that is reached over a proxy, and returns how a server is started for it with a folder of its own. */
async function startOverProxy(start, entryFor) {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-vendor-'));
    const fake = await start(folder);
    const stop = async () => {
        await fake.stop();
        await rm(folder, { recursive: true, force: true, maxRetries: 5 });
    };
    return { fakes: [fake], entry: entryFor(fake, folder), stop };
}

/** Starts the fake of a cluster, and returns how a server is started with a kubeconfig for it. */
async function startOnCluster(entryFor) {
    const fake = await startKubernetes();
    const folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-kube-'));
    const file = path.join(folder, 'config');
    await writeFile(file, kubeconfig(fake.url));
    const stop = async () => {
        await fake.stop();
        await rm(folder, { recursive: true, force: true, maxRetries: 5 });
    };
    return { fakes: [fake], entry: entryFor({ KUBECONFIG: file, HOME: folder }), stop };
}

/** Starts a page, and returns how a browser is started that keeps its files in a temporary folder. */
async function startBrowser() {
    const fake = await startShopPage();
    const folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-browser-'));
    const args = [packageFile('@playwright/mcp/cli.js'), '--headless', '--isolated', '--no-sandbox', '--executable-path', process.env.CHROMIUM ?? '/usr/bin/chromium-headless-shell'];
    const stop = async () => {
        await fake.stop();
        await rm(folder, { recursive: true, force: true, maxRetries: 5 });
    };
    return { fakes: [fake], entry: { command, args, env: { HOME: folder }, cwd: folder }, stop };
}

const onFake = async (start, entryFor) => {
    const fake = await start();
    return { fakes: [fake], entry: entryFor(fake), stop: () => fake.stop() };
};

/** Fills the database of a shop. */
export async function fillShop(shop) {
    await shop.collection('items').insertMany([
        { _id: 1, name: 'pen', price: 2 },
        { _id: 2, name: 'lamp', price: 9, stock: { count: 7 } },
        { _id: 3, name: 'desk', price: 20 }
    ]);
    await shop.collection('old').insertOne({ _id: 1 });
}

/**
 * The servers: `set` is the name of their recipes, `package` what their lists of reads call them, and `start()` starts the fakes
 * and returns `{ fakes, entry, stop() }` with the entry of the server in a configuration. `wrongReads` are tools that declare to read
 * but do more, and tools that only read but declare otherwise. A stand-in has `standsFor` in place of a package.
 */
export const VENDORS = {
    atlassian: {
        set: 'atlassian',
        package: 'mcp-atlassian 0.23.1',
        async start() {
            const fakes = [await startJira(), await startConfluence()];
            const [jira, confluence] = fakes.map(fake => fake.url);
            const env = {
                // The order of the words in its definitions depends on the seed otherwise.
                PYTHONHASHSEED: '0', TOOLSETS: 'all', JIRA_URL: jira, JIRA_PERSONAL_TOKEN: 'fake', CONFLUENCE_URL: confluence, CONFLUENCE_PERSONAL_TOKEN: 'fake'
            };
            const entry = { command: path.join(cache, 'venv-vendors/bin/mcp-atlassian'), args: [], env };
            return { fakes, entry, stop: () => Promise.all(fakes.map(fake => fake.stop())) };
        }
    },
    gitlab: {
        set: 'gitlab',
        package: '@zereight/mcp-gitlab 2.1.64',
        wrongReads: ['download_attachment'],
        // Without the last variable, each start runs npm several times to look for a newer version.
        start: () => onFake(startGitLab, ({ url }) => ({
            command, args: [packageFile('@zereight/mcp-gitlab/build/index.js')],
            env: { GITLAB_API_URL: `${url}/api/v4`, GITLAB_PERSONAL_ACCESS_TOKEN: 'fake', USE_GITLAB_WIKI: 'true', USE_MILESTONE: 'true', GITLAB_DISABLE_VERSION_CHECK: 'true' }
        }))
    },
    // The package kubernetes-mcp-server only starts the program of this one.
    kubernetes: {
        set: 'kubernetes',
        package: 'kubernetes-mcp-server 0.0.67',
        start: () => startOnCluster(env => ({ command: packageFile('kubernetes-mcp-server-linux-amd64/bin/kubernetes-mcp-server-linux-amd64'), args: ['--toolsets', 'core,config,helm'], env }))
    },
    // It runs kubectl and Helm, which `scripts/lib.sh` installs.
    kubectl: {
        set: 'kubernetes',
        package: 'mcp-server-kubernetes 4.1.7',
        wrongReads: ['kubectl_context'],
        start: () => startOnCluster(env => ({
            command, args: [packageFile('mcp-server-kubernetes/dist/index.js')], env: { ...env, PATH: `${path.join(cache, 'kubectl')}:${process.env.PATH}` }
        }))
    },
    linear: {
        set: 'linear',
        standsFor: 'the tools of Linear of August 2026',
        start: () => onFake(startLinear, ({ url }) => ({ url }))
    },
    mongodb: {
        set: 'mongodb',
        package: 'mongodb-mcp-server 3.0.4',
        wrongReads: ['aggregate', 'aggregate-db', 'connect', 'disconnect', 'explain', 'export', 'search-knowledge'],
        start: () => onFake(() => startMongoDb(path.join(cache, 'venv-vendors/bin/python'), fillShop), ({ url }) => ({
            command, args: [packageFile('mongodb-mcp-server/dist/esm/index.js')], env: { MDB_MCP_CONNECTION_STRING: url, MDB_MCP_TELEMETRY: 'disabled' }
        }))
    },
    notion: {
        set: 'notion',
        package: '@notionhq/notion-mcp-server 2.5.2',
        wrongReads: ['API-post-search', 'API-query-data-source'],
        start: () => onFake(startNotion, ({ url }) => ({ command, args: [packageFile('@notionhq/notion-mcp-server/bin/cli.mjs')], env: { NOTION_TOKEN: 'ntn_fake', BASE_URL: url } }))
    },
    // The package slack-mcp-server only starts the program of this one.
    slack: {
        set: 'slack',
        package: 'slack-mcp-server 1.3.0',
        start: () => startOverProxy(startSlack, (fake, folder) => ({
            command: packageFile('slack-mcp-server-linux-amd64/bin/slack-mcp-server-linux-amd64'), args: [],
            env: {
                // The server keeps lists of people and channels in the folder.
                HOME: folder, XDG_CACHE_HOME: folder, SLACK_MCP_XOXP_TOKEN: 'xoxp-fake', SLACK_MCP_PROXY: fake.url, SLACK_MCP_SERVER_CA: fake.certificate,
                SLACK_MCP_ADD_MESSAGE_TOOL: 'true', SLACK_MCP_REACTION_TOOL: 'true', SLACK_MCP_ATTACHMENT_TOOL: 'true', SLACK_MCP_MARK_TOOL: 'true'
            }
        }))
    },
    google: {
        set: 'google-workspace',
        package: 'workspace-mcp 2.2.1',
        wrongReads: ['get_drive_file_download_url'],
        start: () => startOverProxy(startGoogle, (fake, folder) => ({
            command: path.join(cache, 'venv-google/bin/workspace-mcp'), args: ['--single-user', '--tools', 'calendar', 'drive', 'gmail', 'sheets', 'tasks'],
            env: {
                HOME: folder, WORKSPACE_MCP_CREDENTIALS_DIR: folder, GOOGLE_OAUTH_CLIENT_ID: 'fake', GOOGLE_OAUTH_CLIENT_SECRET: 'fake',
                HTTPS_PROXY: fake.url, https_proxy: fake.url, HTTPLIB2_CA_CERTS: fake.certificate, REQUESTS_CA_BUNDLE: fake.certificate, SSL_CERT_FILE: fake.certificate, PYTHONHASHSEED: '0'
            }
        }))
    },
    hostedNotion: {
        set: 'notion-hosted',
        standsFor: "the tools of Notion's hosted server of 2026",
        start: () => onFake(startHostedNotion, ({ url }) => ({ url }))
    },
    hostedSlack: {
        set: 'slack-hosted',
        standsFor: "the tools of Slack's hosted server of August 2026",
        start: () => onFake(startHostedSlack, ({ url }) => ({ url }))
    },
    playwright: {
        set: 'playwright',
        package: '@playwright/mcp 0.0.83',
        wrongReads: ['browser_console_messages', 'browser_find', 'browser_network_request', 'browser_network_requests', 'browser_snapshot', 'browser_take_screenshot'],
        start: startBrowser
    },
    hostedAtlassian: {
        set: 'atlassian-hosted',
        standsFor: 'the tools that were recorded of mcp.atlassian.com',
        start: () => onFake(startHostedAtlassian, ({ url }) => ({ url }))
    },
    stripe: {
        set: 'stripe',
        standsFor: 'the tools that were recorded of mcp.stripe.com',
        start: () => onFake(startStripe, ({ url }) => ({ url }))
    }
};
