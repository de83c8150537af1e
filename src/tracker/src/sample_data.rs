//! The data of the sample project.

use super::model::{
    IssueType::{self, Bug, Epic, Story, Task},
    Priority::{self, Critical, High, Low, Medium},
    Status::{self, Backlog, Cancelled, Done, InProgress, Review, Todo},
};

pub(super) const PEOPLE: [&str; 4] = ["Mara Lindqvist", "Jonas Weber", "Priya Raman", "Tomás Herrera"];

/// The key, the name and the description of the project.
pub(super) const PROJECT: (&str, &str, &str) = (
    "CORE",
    "Core platform",
    "Accounts, sign-in and billing that the web shop and the mobile apps are built on.\n\n\
     This is the sample project of a fresh start: change it as you like, or delete its issues.",
);

/// An issue of the sample project. Its number is its position in [`ISSUES`], counted from 1.
pub(super) struct SampleIssue {
    pub kind: IssueType,
    pub title: &'static str,
    pub status: Status,
    pub priority: Priority,
    pub estimated_hours: Option<f64>,
    /// The number of the parent, which precedes the issue.
    pub parent: Option<usize>,
    /// The index of the reporter in [`PEOPLE`].
    pub reporter: usize,
    /// The index of the assignee in [`PEOPLE`].
    pub assignee: Option<usize>,
    /// The hours since the issue was created.
    pub age_hours: i64,
    /// The hours since its status changed.
    pub moved_hours_ago: i64,
    pub description: &'static str,
}

pub(super) const ISSUES: &[SampleIssue] = &[
    SampleIssue {
        kind: Epic,
        title: "Sign in without passwords",
        status: InProgress,
        priority: High,
        estimated_hours: None,
        parent: None,
        reporter: 0,
        assignee: Some(0),
        age_hours: 700,
        moved_hours_ago: 520,
        description: "Half of all support requests are about lost passwords. Let people sign in with a passkey, and with \
a link by mail where they have none.\n\n\
## Done when\n\
- a new account can be made without a password\n\
- an old account can drop its password\n\
- support can see how somebody signed in",
    },
    SampleIssue {
        kind: Story,
        title: "Register a passkey from the account page",
        status: Review,
        priority: High,
        estimated_hours: Some(24.0),
        parent: Some(1),
        reporter: 0,
        assignee: Some(2),
        age_hours: 640,
        moved_hours_ago: 30,
        description: "As somebody who is signed in, I want to add a passkey, so that next time I need no password.\n\n\
- several passkeys per account, each with a name\n\
- removing the last one needs another way to sign in",
    },
    SampleIssue {
        kind: Task,
        title: "Store public keys and counters of passkeys",
        status: Done,
        priority: High,
        estimated_hours: Some(6.0),
        parent: Some(2),
        reporter: 2,
        assignee: Some(2),
        age_hours: 600,
        moved_hours_ago: 250,
        description: "Table `passkeys(id, account, public_key, sign_count, name, created_at, last_used_at)`. \
The counter must never go down.",
    },
    SampleIssue {
        kind: Task,
        title: "Ask the browser for a new passkey and verify it",
        status: Review,
        priority: High,
        estimated_hours: Some(10.0),
        parent: Some(2),
        reporter: 2,
        assignee: Some(2),
        age_hours: 590,
        moved_hours_ago: 32,
        description: "The challenge lives 5 minutes and is used once. Check origin and RP id on the server.",
    },
    SampleIssue {
        kind: Story,
        title: "Send a sign-in link by mail",
        status: InProgress,
        priority: Medium,
        estimated_hours: Some(16.0),
        parent: Some(1),
        reporter: 0,
        assignee: Some(1),
        age_hours: 560,
        moved_hours_ago: 90,
        description: "As somebody without a passkey, I want a link by mail. The link works once, for 10 minutes, and only \
in the browser that asked for it.",
    },
    SampleIssue {
        kind: Task,
        title: "Limit sign-in mails for one address",
        status: Todo,
        priority: Medium,
        estimated_hours: Some(3.0),
        parent: Some(5),
        reporter: 1,
        assignee: Some(1),
        age_hours: 400,
        moved_hours_ago: 200,
        description: "At most 5 in an hour for one address, and 20 in an hour for one network. Say the same whether the \
address is known or not.",
    },
    SampleIssue {
        kind: Bug,
        title: "Login redirects to a blank page after the session expired",
        status: InProgress,
        priority: Critical,
        estimated_hours: Some(4.0),
        parent: None,
        reporter: 3,
        assignee: Some(1),
        age_hours: 50,
        moved_hours_ago: 26,
        description: "1. Sign in and leave the tab open for an hour.\n2. Click on any link.\n3. Sign in again.\n\n\
Expected: the page that was asked for. Seen: a blank page, `return_to` is empty.\n\n\
About 40 people a day, since release 4.12.",
    },
    SampleIssue {
        kind: Bug,
        title: "Invoices round half a cent the wrong way",
        status: Todo,
        priority: High,
        estimated_hours: Some(5.0),
        parent: None,
        reporter: 3,
        assignee: None,
        age_hours: 120,
        moved_hours_ago: 96,
        description: "VAT of 19 % on 0.50 is shown as 0.09 and booked as 0.10. Bookkeeping rounds half to even; we round down.",
    },
    SampleIssue {
        kind: Story,
        title: "Export all invoices of a year as one archive",
        status: Backlog,
        priority: Low,
        estimated_hours: None,
        parent: None,
        reporter: 3,
        assignee: None,
        age_hours: 300,
        moved_hours_ago: 300,
        description: "Tax advisers ask for it every January. A ZIP with PDFs and a CSV of the totals would do.",
    },
    SampleIssue {
        kind: Bug,
        title: "Avatar upload accepts files of any size",
        status: Backlog,
        priority: Medium,
        estimated_hours: None,
        parent: None,
        reporter: 2,
        assignee: None,
        age_hours: 44,
        moved_hours_ago: 44,
        description: "A file of 2 GB fills the disk of the upload host before it is refused.",
    },
    SampleIssue {
        kind: Story,
        title: "Show where an account is signed in",
        status: Backlog,
        priority: Medium,
        estimated_hours: Some(12.0),
        parent: Some(1),
        reporter: 0,
        assignee: None,
        age_hours: 200,
        moved_hours_ago: 200,
        description: "A list of devices with place and time, and a button that signs one out.",
    },
    SampleIssue {
        kind: Bug,
        title: "Welcome mail is sent twice",
        status: Cancelled,
        priority: Low,
        estimated_hours: None,
        parent: None,
        reporter: 3,
        assignee: Some(1),
        age_hours: 480,
        moved_hours_ago: 430,
        description: "Two customers had it. Could not be seen again after the mail queue was moved.",
    },
];

/// A comment of the sample project.
pub(super) struct SampleComment {
    /// The number of its issue.
    pub issue: usize,
    /// The index of its author in [`PEOPLE`].
    pub author: usize,
    pub age_hours: i64,
    pub content: &'static str,
}

pub(super) const COMMENTS: &[SampleComment] = &[
    SampleComment {
        issue: 2,
        author: 0,
        age_hours: 31,
        content: "Works for me in Firefox and Chrome. In Safari the name field loses focus when the dialog closes, see the recording.",
    },
    SampleComment {
        issue: 2,
        author: 2,
        age_hours: 29,
        content: "Fixed the focus in Safari. The rest can wait for its own issue.",
    },
    SampleComment {
        issue: 7,
        author: 3,
        age_hours: 48,
        content: "Support has 12 tickets about this since Monday. Can we take it before anything else?",
    },
    SampleComment {
        issue: 7,
        author: 1,
        age_hours: 25,
        content: "Found it: `return_to` is dropped when the cookie is renewed. The check was added in 4.12:\n\n\
```\nif session.renewed { params.clear() }\n```\n\nA fix is on its way, with a test for the renewal.",
    },
    SampleComment {
        issue: 8,
        author: 3,
        age_hours: 100,
        content: "The adviser of one customer has noticed. We need a note for those whose invoices are wrong.",
    },
    SampleComment {
        issue: 12,
        author: 1,
        age_hours: 430,
        content: "Cannot be reproduced. Closing; reopen it if it comes back.",
    },
];
