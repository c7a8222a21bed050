-- A ledger as the first version left it when it was killed: dumped, with its pragmas. Rows come
-- before what they refer to.
PRAGMA application_id = 1936485120;
PRAGMA user_version = 1;
PRAGMA foreign_keys = OFF;
BEGIN TRANSACTION;
CREATE TABLE answer (
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    asked TEXT NOT NULL,
    reply TEXT NOT NULL,
    is_new INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (principal, key)
) STRICT, WITHOUT ROWID;
INSERT INTO "answer" VALUES('uid 0','21a971ccb88347b9d1092396763e4178','release db','{"name":"db","owner":"uid 0","slice_ns":1000000,"period_ns":20000000,"exact":false,"vcpus":1,"binding":"qemu:db","paused":false,"since":2,"revision":5,"identity":null}',0,1795452231839982000);
INSERT INTO "answer" VALUES('uid 0','3216aca1dcf2431d685dcca27771977c','reserve job 1ms/10ms exact=false for pid:9321','{"name":"job","owner":"uid 0","slice_ns":1000000,"period_ns":10000000,"exact":false,"vcpus":1,"binding":"pid:9321","paused":false,"since":4,"revision":4,"identity":{"pid":9321,"started":5224080,"inode":1339397}}',1,1795452231773856211);
INSERT INTO "answer" VALUES('uid 0','3eadf96a3354c7b785dc7b7d3ba628bd','change web 3ms/10ms','{"name":"web","owner":"uid 0","slice_ns":3000000,"period_ns":10000000,"exact":true,"vcpus":2,"binding":"libvirt:web","paused":false,"since":1,"revision":3,"identity":null}',0,1795452231687511437);
INSERT INTO "answer" VALUES('uid 0','808f1a56cc4bd82ce03dcae56f5a4421','reserve web 2ms/10ms exact=true vcpus=2 for libvirt:web','{"name":"web","owner":"uid 0","slice_ns":2000000,"period_ns":10000000,"exact":true,"vcpus":2,"binding":"libvirt:web","paused":false,"since":1,"revision":1,"identity":null}',1,1795452231621860016);
INSERT INTO "answer" VALUES('uid 0','9010afde59ca68fe4767d7434bef5de2','reserve db 1ms/20ms exact=false vcpus=1 for qemu:db','{"name":"db","owner":"uid 0","slice_ns":1000000,"period_ns":20000000,"exact":false,"vcpus":1,"binding":"qemu:db","paused":false,"since":2,"revision":2,"identity":null}',1,1795452231655281102);
CREATE TABLE event (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    principal TEXT NOT NULL,
    verb TEXT NOT NULL,
    detail TEXT,
    name TEXT,
    before TEXT,
    after TEXT,
    late INTEGER NOT NULL
) STRICT;
INSERT INTO "event" VALUES(1,1795452231619083482,'uid 0','reserve',NULL,'web',NULL,'{"name":"web","owner":"uid 0","slice_ns":2000000,"period_ns":10000000,"exact":true,"vcpus":2,"binding":"libvirt:web","paused":false,"since":1,"revision":1,"identity":null}',0);
INSERT INTO "event" VALUES(2,1795452231653255201,'uid 0','reserve',NULL,'db',NULL,'{"name":"db","owner":"uid 0","slice_ns":1000000,"period_ns":20000000,"exact":false,"vcpus":1,"binding":"qemu:db","paused":false,"since":2,"revision":2,"identity":null}',0);
INSERT INTO "event" VALUES(3,1795452231687312586,'uid 0','change',NULL,'web','{"name":"web","owner":"uid 0","slice_ns":2000000,"period_ns":10000000,"exact":true,"vcpus":2,"binding":"libvirt:web","paused":false,"since":1,"revision":1,"identity":null}','{"name":"web","owner":"uid 0","slice_ns":3000000,"period_ns":10000000,"exact":true,"vcpus":2,"binding":"libvirt:web","paused":false,"since":1,"revision":3,"identity":null}',0);
INSERT INTO "event" VALUES(4,1795452231745326090,'uid 0','reserve',NULL,'job',NULL,'{"name":"job","owner":"uid 0","slice_ns":1000000,"period_ns":10000000,"exact":false,"vcpus":1,"binding":"pid:9321","paused":false,"since":4,"revision":4,"identity":{"pid":9321,"started":5224080,"inode":1339397}}',0);
INSERT INTO "event" VALUES(5,1795452231839827902,'uid 0','release',NULL,'db','{"name":"db","owner":"uid 0","slice_ns":1000000,"period_ns":20000000,"exact":false,"vcpus":1,"binding":"qemu:db","paused":false,"since":2,"revision":2,"identity":null}',NULL,0);
CREATE TABLE host (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    boot_id TEXT NOT NULL,
    clean INTEGER NOT NULL,
    seq INTEGER NOT NULL
) STRICT;
INSERT INTO "host" VALUES(1,'fba6cf25-acd8-4c47-8270-ba1d733a24c7',0,5);
CREATE TABLE identity (
    name TEXT PRIMARY KEY REFERENCES reservation (name) ON DELETE CASCADE,
    boot_id TEXT NOT NULL,
    pid INTEGER,
    started INTEGER,
    inode INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "identity" VALUES('job','fba6cf25-acd8-4c47-8270-ba1d733a24c7',9321,5224080,1339397);
CREATE TABLE reservation (
    name TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    slice_ns INTEGER NOT NULL,
    period_ns INTEGER NOT NULL,
    exact INTEGER NOT NULL,
    vcpus INTEGER NOT NULL,
    binding TEXT NOT NULL,
    paused INTEGER NOT NULL,
    since INTEGER NOT NULL,
    revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "reservation" VALUES('job','uid 0',1000000,10000000,0,1,'pid:9321',0,4,4);
INSERT INTO "reservation" VALUES('web','uid 0',3000000,10000000,1,2,'libvirt:web',0,1,3);
CREATE INDEX event_by_name ON event (name, seq);
CREATE INDEX answer_by_age ON answer (at);
COMMIT;
