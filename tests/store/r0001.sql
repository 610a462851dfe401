BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('r0001');
CREATE TABLE attempts (
	job TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	"key" TEXT, 
	started DOUBLE NOT NULL, 
	ended DOUBLE, 
	settled BOOLEAN NOT NULL, 
	deleted DOUBLE, 
	CONSTRAINT pk_attempts PRIMARY KEY (job, number), 
	CONSTRAINT uq_attempts_job_key UNIQUE (job, "key"), 
	CONSTRAINT fk_attempts_job FOREIGN KEY(job) REFERENCES jobs (job)
);
INSERT INTO "attempts" VALUES('llama-7b',1,NULL,100.0,NULL,1,NULL);
INSERT INTO "attempts" VALUES('bert',1,NULL,100.0,NULL,1,NULL);
INSERT INTO "attempts" VALUES('plain',1,NULL,100.0,NULL,1,NULL);
CREATE TABLE confirmations (
	id INTEGER NOT NULL, 
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	reason TEXT NOT NULL, 
	withdrawn BOOLEAN NOT NULL, 
	withdrawn_by TEXT NOT NULL, 
	withdrawn_why TEXT NOT NULL, 
	withdrawn_at DOUBLE, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_confirmations PRIMARY KEY (id)
);
CREATE TABLE counted_attempts (
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	turn BIGINT NOT NULL, 
	at DOUBLE NOT NULL, 
	CONSTRAINT pk_counted_attempts PRIMARY KEY (job, attempt)
);
CREATE TABLE counters (
	name TEXT NOT NULL, 
	value BIGINT NOT NULL, 
	CONSTRAINT pk_counters PRIMARY KEY (name)
);
INSERT INTO "counters" VALUES('event',4);
INSERT INTO "counters" VALUES('learned',0);
INSERT INTO "counters" VALUES('confirmed',0);
CREATE TABLE ends (
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	stream TEXT NOT NULL, 
	exit_code BIGINT, 
	signal BIGINT, 
	scheduler_state TEXT, 
	at DOUBLE NOT NULL, 
	CONSTRAINT pk_ends PRIMARY KEY (job, attempt, stream), 
	CONSTRAINT fk_ends_job_attempt FOREIGN KEY(job, attempt) REFERENCES attempts (job, number)
);
CREATE TABLE identity (
	id TEXT NOT NULL, 
	archive TEXT DEFAULT '' NOT NULL, 
	session_key TEXT NOT NULL, 
	CONSTRAINT pk_identity PRIMARY KEY (id)
);
INSERT INTO "identity" VALUES('00000000000000000000000000000001','','0000000000000000000000000000000000000000000000000000000000000000');
CREATE TABLE incident_attempts (
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	incident INTEGER NOT NULL, 
	verdict INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	user TEXT, 
	reason TEXT NOT NULL, 
	category TEXT NOT NULL, 
	recovery TEXT NOT NULL, 
	fault TEXT NOT NULL, 
	words TEXT NOT NULL, 
	CONSTRAINT pk_incident_attempts PRIMARY KEY (job, attempt), 
	CONSTRAINT fk_incident_attempts_incident FOREIGN KEY(incident) REFERENCES incidents (id), 
	CONSTRAINT uq_incident_attempts_verdict UNIQUE (verdict), 
	CONSTRAINT fk_incident_attempts_verdict FOREIGN KEY(verdict) REFERENCES verdicts (id)
);
INSERT INTO "incident_attempts" VALUES('llama-7b',1,1,1,3700.0,'u17','ECC Error','Infrastructure','isolate_and_restart','infrastructure','u17
ecc error
gpu-12
llama-7b
uncorrectable ecc error');
INSERT INTO "incident_attempts" VALUES('bert',1,2,2,1900.0,NULL,'Key Error','Script','fix_first','user','
key error
gpu-001
bert
uncorrectable ecc error');
INSERT INTO "incident_attempts" VALUES('plain',1,3,3,160.0,NULL,'Key Error','Script','fix_first','user','
key error
gpu-001
plain
uncorrectable ecc error');
CREATE TABLE incident_events (
	id INTEGER NOT NULL, 
	incident INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	"by" TEXT NOT NULL, 
	step TEXT NOT NULL, 
	note TEXT NOT NULL, 
	job TEXT, 
	attempt INTEGER, 
	CONSTRAINT pk_incident_events PRIMARY KEY (id), 
	CONSTRAINT fk_incident_events_incident FOREIGN KEY(incident) REFERENCES incidents (id)
);
INSERT INTO "incident_events" VALUES(1,1,3700.0,'logdoctor','opened','','llama-7b',1);
INSERT INTO "incident_events" VALUES(2,2,1900.0,'logdoctor','opened','','bert',1);
INSERT INTO "incident_events" VALUES(3,3,160.0,'logdoctor','opened','','plain',1);
INSERT INTO "incident_events" VALUES(4,1,4000.0,'ops','acknowledged','draining',NULL,NULL);
CREATE TABLE incidents (
	id INTEGER NOT NULL, 
	event BIGINT NOT NULL, 
	"key" TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	node TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	category TEXT NOT NULL, 
	recovery TEXT NOT NULL, 
	fault TEXT NOT NULL, 
	state TEXT NOT NULL, 
	"by" TEXT NOT NULL, 
	note TEXT NOT NULL, 
	changed DOUBLE NOT NULL, 
	opened DOUBLE NOT NULL, 
	last DOUBLE NOT NULL, 
	attempts BIGINT NOT NULL, 
	jobs BIGINT NOT NULL, 
	newest INTEGER, 
	merged_into INTEGER, 
	notified BOOLEAN NOT NULL, 
	CONSTRAINT pk_incidents PRIMARY KEY (id), 
	CONSTRAINT uq_incidents_event UNIQUE (event), 
	CONSTRAINT fk_incidents_newest FOREIGN KEY(newest) REFERENCES verdicts (id), 
	CONSTRAINT fk_incidents_merged_into FOREIGN KEY(merged_into) REFERENCES incidents (id)
);
INSERT INTO "incidents" VALUES(1,4,'f0 infrastructure node gpu-12','f0','gpu-12','ECC Error','Infrastructure','isolate_and_restart','infrastructure','acknowledged','ops','draining',4000.0,3700.0,3700.0,1,1,1,NULL,0);
INSERT INTO "incidents" VALUES(2,2,'f1 user','f1','','Key Error','Script','fix_first','user','new','logdoctor','',1900.0,1900.0,1900.0,1,1,2,NULL,0);
INSERT INTO "incidents" VALUES(3,3,'other user','other','','Key Error','Script','fix_first','user','new','logdoctor','',160.0,160.0,160.0,1,1,3,NULL,0);
CREATE TABLE jobs (
	job TEXT NOT NULL, 
	facts TEXT NOT NULL, 
	created DOUBLE NOT NULL, 
	updated DOUBLE NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (job)
);
INSERT INTO "jobs" VALUES('llama-7b','{"name":null,"user":"u17","framework":null,"launcher":null,"image":null,"command":null,"checkpoint_dir":null,"parent":null,"nodelist":null,"placed":false,"nodes":null,"ranks_per_node":null,"gpus":1024,"labels":{},"like":null}',100.0,100.0);
INSERT INTO "jobs" VALUES('bert','{"name":null,"user":null,"framework":null,"launcher":null,"image":null,"command":null,"checkpoint_dir":null,"parent":null,"nodelist":null,"placed":false,"nodes":4,"ranks_per_node":8,"gpus":null,"labels":{},"like":null}',100.0,100.0);
INSERT INTO "jobs" VALUES('plain','{"name":null,"user":null,"framework":null,"launcher":null,"image":null,"command":null,"checkpoint_dir":null,"parent":null,"nodelist":null,"placed":false,"nodes":null,"ranks_per_node":null,"gpus":null,"labels":{},"like":null}',100.0,100.0);
CREATE TABLE leaders (
	id INTEGER NOT NULL, 
	process TEXT NOT NULL, 
	until DOUBLE NOT NULL, 
	CONSTRAINT pk_leaders PRIMARY KEY (id)
);
INSERT INTO "leaders" VALUES(1,'',0.0);
CREATE TABLE learned_rules (
	number INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	place INTEGER NOT NULL, 
	digest TEXT NOT NULL, 
	pattern TEXT NOT NULL, 
	status TEXT NOT NULL, 
	harmless BOOLEAN NOT NULL, 
	agent TEXT NOT NULL, 
	jobs BIGINT NOT NULL, 
	lines BIGINT NOT NULL, 
	taken BIGINT NOT NULL, 
	last_turn BIGINT NOT NULL, 
	last_hit DOUBLE, 
	created DOUBLE NOT NULL, 
	changed DOUBLE NOT NULL, 
	origin TEXT NOT NULL, 
	CONSTRAINT pk_learned_rules PRIMARY KEY (number), 
	CONSTRAINT uq_learned_rules_kind_place UNIQUE (kind, place), 
	CONSTRAINT uq_learned_rules_id UNIQUE (id), 
	CONSTRAINT uq_learned_rules_digest UNIQUE (digest)
);
CREATE TABLE log (
	shard INTEGER NOT NULL, 
	seq BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	frame BLOB NOT NULL, 
	CONSTRAINT pk_log PRIMARY KEY (shard, seq)
);
CREATE TABLE marks (
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	stream TEXT NOT NULL, 
	mark TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	CONSTRAINT pk_marks PRIMARY KEY (job, attempt, stream, mark)
);
CREATE TABLE model_calls (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	job TEXT NOT NULL, 
	model TEXT NOT NULL, 
	purpose TEXT NOT NULL, 
	tokens_in BIGINT NOT NULL, 
	tokens_out BIGINT NOT NULL, 
	dollars DOUBLE NOT NULL, 
	failure TEXT NOT NULL, 
	CONSTRAINT pk_model_calls PRIMARY KEY (id)
);
CREATE TABLE model_exchanges (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	job TEXT NOT NULL, 
	attempt INTEGER, 
	purpose TEXT NOT NULL, 
	model TEXT NOT NULL, 
	prompt TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	tokens_in BIGINT NOT NULL, 
	tokens_out BIGINT NOT NULL, 
	dollars DOUBLE NOT NULL, 
	seconds DOUBLE NOT NULL, 
	cached BOOLEAN NOT NULL, 
	failure TEXT NOT NULL, 
	usable BOOLEAN NOT NULL, 
	body BLOB NOT NULL, 
	CONSTRAINT pk_model_exchanges PRIMARY KEY (id)
);
CREATE TABLE model_totals (
	model TEXT NOT NULL, 
	purpose TEXT NOT NULL, 
	result TEXT NOT NULL, 
	calls BIGINT NOT NULL, 
	tokens_in BIGINT NOT NULL, 
	tokens_out BIGINT NOT NULL, 
	dollars DOUBLE NOT NULL, 
	CONSTRAINT pk_model_totals PRIMARY KEY (model, purpose, result)
);
CREATE TABLE node_actions (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	verdict BIGINT, 
	test BIGINT, 
	job TEXT, 
	attempt INTEGER, 
	body TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	state TEXT NOT NULL, 
	"by" TEXT NOT NULL, 
	why TEXT NOT NULL, 
	changed DOUBLE NOT NULL, 
	CONSTRAINT pk_node_actions PRIMARY KEY (id)
);
CREATE TABLE node_audit (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	"by" TEXT NOT NULL, 
	what TEXT NOT NULL, 
	subject BIGINT NOT NULL, 
	node TEXT NOT NULL, 
	step TEXT NOT NULL, 
	why TEXT NOT NULL, 
	CONSTRAINT pk_node_audit PRIMARY KEY (id)
);
CREATE TABLE node_cordons (
	id INTEGER NOT NULL, 
	node TEXT NOT NULL, 
	how TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	state TEXT NOT NULL, 
	"by" TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	reason TEXT NOT NULL, 
	verdict BIGINT, 
	test BIGINT, 
	changed DOUBLE NOT NULL, 
	why TEXT NOT NULL, 
	CONSTRAINT pk_node_cordons PRIMARY KEY (id)
);
CREATE TABLE node_findings (
	node TEXT NOT NULL, 
	test INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	standing TEXT NOT NULL, 
	fault TEXT NOT NULL, 
	why TEXT NOT NULL, 
	boot TEXT NOT NULL, 
	CONSTRAINT pk_node_findings PRIMARY KEY (node, test), 
	CONSTRAINT fk_node_findings_test FOREIGN KEY(test) REFERENCES node_tests (id)
);
CREATE TABLE node_tests (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	"by" TEXT NOT NULL, 
	launcher TEXT NOT NULL, 
	verdict BIGINT, 
	state TEXT NOT NULL, 
	ended DOUBLE, 
	why TEXT NOT NULL, 
	nodes TEXT NOT NULL, 
	options TEXT NOT NULL, 
	conclusion TEXT, 
	followed BOOLEAN NOT NULL, 
	seen DOUBLE NOT NULL, 
	CONSTRAINT pk_node_tests PRIMARY KEY (id)
);
CREATE TABLE notice_targets (
	target TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	why TEXT NOT NULL, 
	CONSTRAINT pk_notice_targets PRIMARY KEY (target)
);
CREATE TABLE noticed_lines (
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	stream TEXT NOT NULL, 
	line BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	text TEXT NOT NULL, 
	runs INTEGER NOT NULL, 
	CONSTRAINT pk_noticed_lines PRIMARY KEY (job, attempt, stream, line)
);
CREATE TABLE notices (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	target TEXT NOT NULL, 
	event TEXT NOT NULL, 
	incident INTEGER, 
	"key" TEXT NOT NULL, 
	body TEXT NOT NULL, 
	state TEXT NOT NULL, 
	tries INTEGER NOT NULL, 
	due DOUBLE NOT NULL, 
	until DOUBLE NOT NULL, 
	changed DOUBLE NOT NULL, 
	why TEXT NOT NULL, 
	"by" TEXT NOT NULL, 
	summary INTEGER, 
	CONSTRAINT pk_notices PRIMARY KEY (id), 
	CONSTRAINT fk_notices_incident FOREIGN KEY(incident) REFERENCES incidents (id), 
	CONSTRAINT uq_notices_key UNIQUE ("key"), 
	CONSTRAINT fk_notices_summary FOREIGN KEY(summary) REFERENCES notices (id)
);
CREATE TABLE parts (
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	object TEXT NOT NULL, 
	bytes BIGINT NOT NULL, 
	"index" BLOB NOT NULL, 
	at DOUBLE NOT NULL, 
	CONSTRAINT pk_parts PRIMARY KEY (job, attempt, number), 
	CONSTRAINT uq_parts_object UNIQUE (object)
);
CREATE TABLE printed_shapes (
	kind TEXT NOT NULL, 
	shapes BLOB NOT NULL, 
	CONSTRAINT pk_printed_shapes PRIMARY KEY (kind)
);
CREATE TABLE refusal_counts (
	guard TEXT NOT NULL, 
	refused BIGINT NOT NULL, 
	CONSTRAINT pk_refusal_counts PRIMARY KEY (guard)
);
CREATE TABLE residuals (
	id INTEGER NOT NULL, 
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	outcome TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	recovery TEXT NOT NULL, 
	decided TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	frame BLOB NOT NULL, 
	CONSTRAINT pk_residuals PRIMARY KEY (id), 
	CONSTRAINT uq_residuals_job_attempt UNIQUE (job, attempt)
);
CREATE TABLE rule_events (
	id INTEGER NOT NULL, 
	rule INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	"by" TEXT NOT NULL, 
	step TEXT NOT NULL, 
	from_status TEXT NOT NULL, 
	to_status TEXT NOT NULL, 
	from_harmless BOOLEAN NOT NULL, 
	to_harmless BOOLEAN NOT NULL, 
	why TEXT NOT NULL, 
	undoes INTEGER, 
	CONSTRAINT pk_rule_events PRIMARY KEY (id), 
	CONSTRAINT fk_rule_events_rule FOREIGN KEY(rule) REFERENCES learned_rules (number), 
	CONSTRAINT uq_rule_events_undoes UNIQUE (undoes), 
	CONSTRAINT fk_rule_events_undoes FOREIGN KEY(undoes) REFERENCES rule_events (id)
);
CREATE TABLE rule_hits (
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	rule INTEGER NOT NULL, 
	lines BIGINT NOT NULL, 
	taken BIGINT NOT NULL, 
	seen BIGINT NOT NULL, 
	CONSTRAINT pk_rule_hits PRIMARY KEY (job, attempt, rule), 
	CONSTRAINT fk_rule_hits_rule FOREIGN KEY(rule) REFERENCES learned_rules (number)
);
CREATE TABLE rule_kinds (
	kind TEXT NOT NULL, 
	counted BIGINT NOT NULL, 
	CONSTRAINT pk_rule_kinds PRIMARY KEY (kind)
);
CREATE TABLE rule_refusals (
	id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	agent TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	pattern TEXT NOT NULL, 
	guard TEXT NOT NULL, 
	cause TEXT NOT NULL, 
	votes TEXT, 
	CONSTRAINT pk_rule_refusals PRIMARY KEY (id)
);
CREATE TABLE rule_totals (
	rule TEXT NOT NULL, 
	attempts BIGINT NOT NULL, 
	lines BIGINT NOT NULL, 
	last DOUBLE NOT NULL, 
	CONSTRAINT pk_rule_totals PRIMARY KEY (rule)
);
INSERT INTO "rule_totals" VALUES('diagnosis/infrastructure/ecc',3,3,3700.0);
CREATE TABLE seen_shapes (
	kind TEXT NOT NULL, 
	shapes BLOB NOT NULL, 
	CONSTRAINT pk_seen_shapes PRIMARY KEY (kind)
);
CREATE TABLE sessions (
	digest TEXT NOT NULL, 
	token TEXT NOT NULL, 
	expires DOUBLE NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (digest)
);
CREATE TABLE shards (
	shard INTEGER NOT NULL, 
	owner TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	until DOUBLE NOT NULL, 
	head BIGINT NOT NULL, 
	asked BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	rulebook TEXT NOT NULL, 
	CONSTRAINT pk_shards PRIMARY KEY (shard)
);
INSERT INTO "shards" VALUES(0,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(1,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(2,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(3,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(4,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(5,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(6,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(7,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(8,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(9,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(10,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(11,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(12,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(13,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(14,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(15,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(16,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(17,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(18,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(19,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(20,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(21,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(22,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(23,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(24,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(25,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(26,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(27,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(28,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(29,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(30,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(31,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(32,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(33,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(34,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(35,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(36,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(37,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(38,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(39,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(40,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(41,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(42,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(43,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(44,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(45,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(46,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(47,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(48,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(49,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(50,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(51,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(52,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(53,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(54,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(55,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(56,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(57,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(58,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(59,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(60,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(61,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(62,'',0,0.0,0,0,0,'');
INSERT INTO "shards" VALUES(63,'',0,0.0,0,0,0,'');
CREATE TABLE streams (
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	stream TEXT NOT NULL, 
	shard INTEGER NOT NULL, 
	next BIGINT NOT NULL, 
	lines BIGINT NOT NULL, 
	archived BIGINT NOT NULL, 
	changed DOUBLE NOT NULL, 
	scanned BIGINT NOT NULL, 
	kept BIGINT NOT NULL, 
	state TEXT NOT NULL, 
	problem TEXT NOT NULL, 
	CONSTRAINT pk_streams PRIMARY KEY (job, attempt, stream)
);
CREATE TABLE tested_nodes (
	node TEXT NOT NULL, 
	test INTEGER NOT NULL, 
	CONSTRAINT pk_tested_nodes PRIMARY KEY (node, test), 
	CONSTRAINT fk_tested_nodes_test FOREIGN KEY(test) REFERENCES node_tests (id)
);
CREATE TABLE tokens (
	name TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	scopes TEXT NOT NULL, 
	prefixes TEXT NOT NULL, 
	created DOUBLE NOT NULL, 
	expires DOUBLE, 
	revoked DOUBLE, 
	CONSTRAINT pk_tokens PRIMARY KEY (name), 
	CONSTRAINT uq_tokens_digest UNIQUE (digest)
);
CREATE TABLE verdict_bodies (
	verdict INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_verdict_bodies PRIMARY KEY (verdict), 
	CONSTRAINT fk_verdict_bodies_verdict FOREIGN KEY(verdict) REFERENCES verdicts (id)
);
INSERT INTO "verdict_bodies" VALUES(1,'{"reason":"ECC Error","category":"Infrastructure","fault":"infrastructure","recovery":"isolate_and_restart","outcome":"failed","confidence":0.9,"suggestion":"Cordon the node.","evidence":[{"file":"","stream":"main","line":7,"quote":"uncorrectable ECC error","rule":"diagnosis/infrastructure/ecc","before":[],"after":[]}],"suspects":[{"node":"gpu-12","rank":null,"gpu":null,"why":"why"}],"first_rank":3,"symptoms":[],"decided_by":{"kind":"rule","rule":"diagnosis/infrastructure/ecc","rulebook":"abc","model":"","prompt":""},"fingerprint":"f0","progress":{"step":120,"total":null,"loss":null,"throughput":null,"line":null,"stream":"","curve":[],"accuracy":null,"learned":false},"compression":{"lines_in":10,"lines_kept":1,"bytes_in":100,"bytes_kept":10,"rules":{}},"problems":[],"why":"","alternatives":[],"file":"","version":1,"seconds":0.25,"nodes":[],"ranks":[],"onset_step":null}');
INSERT INTO "verdict_bodies" VALUES(2,'{"reason":"Key Error","category":"Script","fault":"user","recovery":"fix_first","outcome":"failed","confidence":0.9,"suggestion":"Cordon the node.","evidence":[{"file":"","stream":"main","line":7,"quote":"uncorrectable ECC error","rule":"diagnosis/infrastructure/ecc","before":[],"after":[]}],"suspects":[{"node":"gpu-001","rank":3,"gpu":null,"why":"its kernel says so"}],"first_rank":3,"symptoms":[],"decided_by":{"kind":"rule","rule":"diagnosis/infrastructure/ecc","rulebook":"abc","model":"","prompt":""},"fingerprint":"f1","progress":{"step":120,"total":null,"loss":null,"throughput":null,"line":null,"stream":"","curve":[],"accuracy":null,"learned":false},"compression":{"lines_in":10,"lines_kept":1,"bytes_in":100,"bytes_kept":10,"rules":{}},"problems":[],"why":"","alternatives":[],"file":"","version":1,"seconds":0.25,"nodes":[],"ranks":[],"onset_step":null}');
INSERT INTO "verdict_bodies" VALUES(3,'{"reason":"Key Error","category":"Script","fault":"user","recovery":"fix_first","outcome":"failed","confidence":0.9,"suggestion":"Cordon the node.","evidence":[{"file":"","stream":"main","line":7,"quote":"uncorrectable ECC error","rule":"diagnosis/infrastructure/ecc","before":[],"after":[]}],"suspects":[{"node":"gpu-001","rank":3,"gpu":null,"why":"its kernel says so"}],"first_rank":3,"symptoms":[],"decided_by":{"kind":"rule","rule":"diagnosis/infrastructure/ecc","rulebook":"abc","model":"","prompt":""},"fingerprint":"other","progress":{"step":120,"total":null,"loss":null,"throughput":null,"line":null,"stream":"","curve":[],"accuracy":null,"learned":false},"compression":{"lines_in":10,"lines_kept":1,"bytes_in":100,"bytes_kept":10,"rules":{}},"problems":[],"why":"","alternatives":[],"file":"","version":1,"seconds":0.25,"nodes":[],"ranks":[],"onset_step":null}');
CREATE TABLE verdict_nodes (
	node TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	verdict INTEGER NOT NULL, 
	CONSTRAINT pk_verdict_nodes PRIMARY KEY (node, at, verdict), 
	CONSTRAINT fk_verdict_nodes_verdict FOREIGN KEY(verdict) REFERENCES verdicts (id)
);
INSERT INTO "verdict_nodes" VALUES('gpu-12',3700.0,1);
INSERT INTO "verdict_nodes" VALUES('gpu-001',1900.0,2);
INSERT INTO "verdict_nodes" VALUES('gpu-001',160.0,3);
CREATE TABLE verdicts (
	id INTEGER NOT NULL, 
	event BIGINT NOT NULL, 
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	final BOOLEAN NOT NULL, 
	superseded_by INTEGER, 
	user TEXT, 
	reason TEXT NOT NULL, 
	category TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	recovery TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	decided TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_verdicts PRIMARY KEY (id), 
	CONSTRAINT fk_verdicts_job_attempt FOREIGN KEY(job, attempt) REFERENCES attempts (job, number), 
	CONSTRAINT uq_verdicts_event UNIQUE (event), 
	CONSTRAINT fk_verdicts_superseded_by FOREIGN KEY(superseded_by) REFERENCES verdicts (id)
);
INSERT INTO "verdicts" VALUES(1,1,'llama-7b',1,3700.0,1,NULL,'u17','ECC Error','Infrastructure','failed','isolate_and_restart','f0','rule');
INSERT INTO "verdicts" VALUES(2,2,'bert',1,1900.0,1,NULL,NULL,'Key Error','Script','failed','fix_first','f1','rule');
INSERT INTO "verdicts" VALUES(3,3,'plain',1,160.0,1,NULL,NULL,'Key Error','Script','failed','fix_first','other','rule');
CREATE TABLE work (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	kind TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	body TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	due DOUBLE NOT NULL, 
	tries INTEGER NOT NULL, 
	CONSTRAINT uq_work_kind_key UNIQUE (kind, "key")
);
CREATE TABLE workers (
	worker TEXT NOT NULL, 
	rulebook TEXT NOT NULL, 
	until DOUBLE NOT NULL, 
	figures TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_workers PRIMARY KEY (worker)
);
CREATE TABLE world_results (
	test INTEGER NOT NULL, 
	world INTEGER NOT NULL, 
	place INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_world_results PRIMARY KEY (test, world), 
	CONSTRAINT uq_world_results_test_place UNIQUE (test, place), 
	CONSTRAINT fk_world_results_test FOREIGN KEY(test) REFERENCES node_tests (id)
);
CREATE INDEX ix_jobs_newest ON jobs (created, job);
CREATE INDEX ix_work_due ON work (kind, due, id);
CREATE INDEX ix_learned_rules_status ON learned_rules (status, number);
CREATE INDEX ix_rule_refusals_kind ON rule_refusals (kind, id);
CREATE INDEX ix_model_calls_job ON model_calls (job, at);
CREATE INDEX ix_model_calls_at ON model_calls (at);
CREATE INDEX ix_confirmations_attempt ON confirmations (job, attempt, id);
CREATE UNIQUE INDEX uq_confirmations_live ON confirmations (job, attempt) WHERE withdrawn IS 0;
CREATE INDEX ix_residuals_digest ON residuals (digest, decided);
CREATE INDEX ix_model_exchanges_attempt ON model_exchanges (job, attempt, id);
CREATE INDEX ix_model_exchanges_key ON model_exchanges ("key", usable, id);
CREATE INDEX ix_node_tests_followed ON node_tests (followed, id);
CREATE INDEX ix_node_tests_state ON node_tests (state, id);
CREATE INDEX ix_node_tests_verdict ON node_tests (verdict, id);
CREATE INDEX ix_node_cordons_node ON node_cordons (node, id);
CREATE INDEX ix_node_cordons_state ON node_cordons (state, id);
CREATE INDEX ix_node_cordons_recent ON node_cordons (how, at);
CREATE UNIQUE INDEX uq_node_cordons_open ON node_cordons (node, how) WHERE state IN ('wanted', 'standing');
CREATE INDEX ix_node_cordons_verdict ON node_cordons (verdict, id);
CREATE INDEX ix_node_actions_state ON node_actions (state, id);
CREATE UNIQUE INDEX uq_node_actions_open ON node_actions (subject) WHERE state IN ('waiting', 'approved');
CREATE INDEX ix_node_actions_subject ON node_actions (subject, id);
CREATE INDEX ix_node_actions_verdict ON node_actions (verdict, id);
CREATE INDEX ix_node_audit_node ON node_audit (node, id);
CREATE INDEX ix_node_audit_subject ON node_audit (what, subject, id);
CREATE TRIGGER tr_node_audit_update BEFORE UPDATE ON node_audit BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END;
CREATE TRIGGER tr_node_audit_delete BEFORE DELETE ON node_audit BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END;
CREATE TRIGGER tr_node_audit_replace BEFORE INSERT ON node_audit WHEN NEW.id IN (SELECT id FROM node_audit) BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END;
CREATE INDEX ix_streams_shard ON streams (shard);
CREATE INDEX ix_marks_at ON marks (at);
CREATE INDEX ix_attempts_settled ON attempts (settled, job, number);
CREATE INDEX ix_rule_events_rule ON rule_events (rule, id);
CREATE INDEX ix_node_findings_standing ON node_findings (standing, node);
CREATE INDEX ix_verdicts_recovery ON verdicts (recovery, at, id) WHERE superseded_by IS NULL;
CREATE INDEX ix_verdicts_newest ON verdicts (at, id) WHERE superseded_by IS NULL;
CREATE INDEX ix_verdicts_history ON verdicts (job, attempt, id);
CREATE INDEX ix_verdicts_user ON verdicts (user, at, id) WHERE superseded_by IS NULL;
CREATE INDEX ix_verdicts_fingerprint ON verdicts (fingerprint, at, id) WHERE superseded_by IS NULL;
CREATE INDEX ix_verdicts_outcome ON verdicts (outcome, at, id) WHERE superseded_by IS NULL;
CREATE INDEX ix_verdicts_job ON verdicts (job, at, id) WHERE superseded_by IS NULL;
CREATE INDEX ix_verdicts_reason ON verdicts (reason, at, id) WHERE superseded_by IS NULL;
CREATE INDEX ix_verdicts_category ON verdicts (category, at, id) WHERE superseded_by IS NULL;
CREATE INDEX ix_verdict_nodes_verdict ON verdict_nodes (verdict);
CREATE INDEX ix_incidents_facets ON incidents (state, reason, category, recovery, fault) WHERE merged_into IS NULL;
CREATE INDEX ix_incidents_newest ON incidents (last, id);
CREATE UNIQUE INDEX uq_incidents_open ON incidents ("key") WHERE state IN ('new', 'acknowledged');
CREATE INDEX ix_incidents_state ON incidents (state, last, id);
CREATE INDEX ix_incidents_reason ON incidents (reason, last, id);
CREATE INDEX ix_incidents_notified ON incidents (notified, id);
CREATE INDEX ix_incidents_fingerprint ON incidents (fingerprint, id);
CREATE INDEX ix_incident_attempts_newest ON incident_attempts (incident, at, verdict, job);
CREATE INDEX ix_incident_attempts_job ON incident_attempts (incident, job);
CREATE INDEX ix_incident_attempts_user ON incident_attempts (user, incident);
CREATE INDEX ix_incident_events_incident ON incident_events (incident, id);
CREATE INDEX ix_notices_due ON notices (target, state, due, id);
CREATE INDEX ix_notices_incident ON notices (incident, id);
CREATE INDEX ix_notices_state ON notices (state, id);
CREATE INDEX ix_notices_summary ON notices (summary);
DELETE FROM "sqlite_sequence";
COMMIT;