PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE access (
    principal TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    cpu_ppm INTEGER,
    machines INTEGER,
    users TEXT NOT NULL,
    token TEXT UNIQUE,
    certificate TEXT UNIQUE,
    made INTEGER NOT NULL,
    expires INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE answer (
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    asked TEXT NOT NULL,
    reply TEXT NOT NULL,
    is_new INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (principal, key)
) STRICT, WITHOUT ROWID;
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
INSERT INTO event VALUES(1,1795657228540733911,'uid 1000','reserve',NULL,'web',NULL,'{"name":"web","owner":"uid 1000","slice_ns":2000000,"period_ns":10000000,"exact":true,"until":1796148000000000000,"vcpus":1,"binding":"libvirt:web","user":1000,"paused":false,"since":1,"revision":1,"identity":null}',0);
INSERT INTO event VALUES(2,1795657229540733911,'uid 5','change',NULL,'web','{"name":"web","owner":"uid 1000","slice_ns":2000000,"period_ns":10000000,"exact":true,"until":1796148000000000000,"vcpus":1,"binding":"libvirt:web","user":1000,"paused":false,"since":1,"revision":1,"identity":null}','{"name":"web","owner":"uid 1000","slice_ns":4000000,"period_ns":10000000,"exact":true,"until":1796148000000000000,"vcpus":1,"binding":"libvirt:web","user":1000,"paused":false,"since":1,"revision":2,"identity":null}',0);
INSERT INTO event VALUES(3,1795657230540733911,'uid 6','change',NULL,'web','{"name":"web","owner":"uid 1000","slice_ns":4000000,"period_ns":10000000,"exact":true,"until":1796148000000000000,"vcpus":1,"binding":"libvirt:web","user":1000,"paused":false,"since":1,"revision":2,"identity":null}','{"name":"web","owner":"uid 1000","slice_ns":4000000,"period_ns":10000000,"exact":true,"vcpus":1,"binding":"libvirt:web","user":1000,"paused":false,"since":1,"revision":3,"identity":null}',0);
CREATE TABLE history (
    start INTEGER NOT NULL,
    name TEXT NOT NULL,
    length INTEGER NOT NULL,
    until INTEGER NOT NULL,
    continues INTEGER NOT NULL,
    existed_ns INTEGER NOT NULL,
    known_ns INTEGER NOT NULL,
    contested_ns INTEGER NOT NULL,
    reserved_ns INTEGER NOT NULL,
    due_ns INTEGER NOT NULL,
    delivered_ns INTEGER NOT NULL,
    late_ns INTEGER NOT NULL,
    deadlines INTEGER NOT NULL,
    missed INTEGER NOT NULL,
    owner TEXT NOT NULL DEFAULT 'service',
    PRIMARY KEY (start, name)
) STRICT, WITHOUT ROWID;
INSERT INTO history VALUES(498793,'web',1,0,0,3600000000000,3600000000000,0,1440000000000,1440000000000,1440000000000,0,360,0,'uid 1000');
INSERT INTO history VALUES(498794,'web',1,0,1,3600000000000,3600000000000,0,1440000000000,1440000000000,1440000000000,0,360,0,'uid 1000');
CREATE TABLE host (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    boot_id TEXT NOT NULL,
    clean INTEGER NOT NULL,
    seq INTEGER NOT NULL
) STRICT;
INSERT INTO host VALUES(1,'c73221df-0b50-4afa-acd7-2a24cf8f9934',1,3);
CREATE TABLE identity (
    name TEXT PRIMARY KEY REFERENCES reservation (name) ON DELETE CASCADE,
    boot_id TEXT NOT NULL,
    pid INTEGER,
    started INTEGER,
    inode INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE plan (
    principal TEXT PRIMARY KEY,
    since INTEGER NOT NULL,
    plan TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE raise (
    name TEXT NOT NULL,
    principal TEXT NOT NULL,
    since INTEGER NOT NULL,
    slice_ns INTEGER,
    period_ns INTEGER,
    vcpus INTEGER,
    PRIMARY KEY (name, principal)
) STRICT, WITHOUT ROWID;
INSERT INTO raise VALUES('web','uid 5',1,2000000,10000000,1);
INSERT INTO raise VALUES('web','uid 6',1,NULL,NULL,NULL);
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
, user INTEGER NOT NULL DEFAULT 0, phase_ns INTEGER, gang TEXT, strict INTEGER NOT NULL DEFAULT 0, by_use INTEGER NOT NULL DEFAULT 0, until INTEGER, uuid TEXT, enforce TEXT NOT NULL DEFAULT 'dispatcher') STRICT, WITHOUT ROWID;
INSERT INTO reservation VALUES('web','uid 1000',4000000,10000000,1,1,'libvirt:web',0,1,3,1000,NULL,NULL,0,0,NULL,NULL,'dispatcher');
CREATE TABLE rights (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    tenants INTEGER NOT NULL
) STRICT;
INSERT INTO rights VALUES(1,1);
CREATE TABLE share (
    part TEXT NOT NULL,
    principal TEXT NOT NULL,
    number INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (part, principal)
) STRICT, WITHOUT ROWID;
INSERT INTO share VALUES('event','uid 1000',1,406);
INSERT INTO share VALUES('event','uid 5',1,620);
INSERT INTO share VALUES('event','uid 6',1,592);
INSERT INTO share VALUES('history','uid 1000',2,506);
CREATE INDEX event_by_name ON event (name, seq);
CREATE INDEX answer_by_age ON answer (at);
CREATE INDEX history_by_name ON history (name, start);
CREATE INDEX event_by_owner ON event (coalesce(CASE WHEN principal <> 'service' THEN principal
                 WHEN json_valid(after) THEN after ->> '$.owner'
                 WHEN json_valid(before) THEN before ->> '$.owner' END, 'service'), seq);
CREATE INDEX history_by_owner ON history (owner, length, start, name);
CREATE TRIGGER event_added AFTER INSERT ON event BEGIN
                 INSERT INTO share VALUES ('event', coalesce(CASE WHEN new.principal <> 'service' THEN new.principal
                 WHEN json_valid(new.after) THEN new.after ->> '$.owner'
                 WHEN json_valid(new.before) THEN new.before ->> '$.owner' END, 'service'), 1, 192 + coalesce(length(CAST(new.detail AS BLOB)), 0) + coalesce(length(CAST(new.before AS BLOB)), 0) + coalesce(length(CAST(new.after AS BLOB)), 0))
                 ON CONFLICT (part, principal) DO UPDATE
                 SET number = number + 1, bytes = bytes + excluded.bytes;
             END;
CREATE TRIGGER event_deleted AFTER DELETE ON event BEGIN
                 UPDATE share SET number = number - 1, bytes = bytes - (192 + coalesce(length(CAST(old.detail AS BLOB)), 0) + coalesce(length(CAST(old.before AS BLOB)), 0) + coalesce(length(CAST(old.after AS BLOB)), 0))
                 WHERE part = 'event' AND principal = coalesce(CASE WHEN old.principal <> 'service' THEN old.principal
                 WHEN json_valid(old.after) THEN old.after ->> '$.owner'
                 WHEN json_valid(old.before) THEN old.before ->> '$.owner' END, 'service');
                 DELETE FROM share
                 WHERE part = 'event' AND principal = coalesce(CASE WHEN old.principal <> 'service' THEN old.principal
                 WHEN json_valid(old.after) THEN old.after ->> '$.owner'
                 WHEN json_valid(old.before) THEN old.before ->> '$.owner' END, 'service') AND number <= 0;
             END;
CREATE TRIGGER history_added AFTER INSERT ON history BEGIN
                 INSERT INTO share VALUES ('history', new.owner, 1, 200 + 7 * coalesce(length(CAST(new.name AS BLOB)), 0) + 4 * coalesce(length(CAST(new.owner AS BLOB)), 0))
                 ON CONFLICT (part, principal) DO UPDATE
                 SET number = number + 1, bytes = bytes + excluded.bytes;
             END;
CREATE TRIGGER history_deleted AFTER DELETE ON history BEGIN
                 UPDATE share SET number = number - 1, bytes = bytes - (200 + 7 * coalesce(length(CAST(old.name AS BLOB)), 0) + 4 * coalesce(length(CAST(old.owner AS BLOB)), 0))
                 WHERE part = 'history' AND principal = old.owner;
                 DELETE FROM share
                 WHERE part = 'history' AND principal = old.owner AND number <= 0;
             END;
COMMIT;
PRAGMA user_version = 10;
PRAGMA application_id = 1936485120;
