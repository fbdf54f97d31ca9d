-- uses: epoch ids tables outbox
-- Commits the call of a timer, all or nothing: its results, and the planned time up to which the timer is done.
-- A field of the state holds that time. The checkpoint stays. Only the owner at its epoch can commit, and only
-- if the field has the value that it had before the call. The script recognises a repeated commit by the value
-- after it.
--
-- In a partition that takes nothing more, a timer has its last planned times, and those that follow have the
-- others. The time that parts them is not before the seal; for later calls the owner must know it.
--
-- KEYS  lock (hash)  state (hash)  messages (stream)  heads (hash)  counts (hash)
--       tables...: for each table its values (hash) and its expiry index (zset)
-- ARGV  owner  epoch  checkpoint: at which the timer was called
--       timer: the field that holds the planned time  before  after: what it holds before and after; `sets` sets it
--       knows_end: '1' if the planned time is one that the partition still has though it is sealed
--       last_timer: the field of the timer that this owner called last; '' for none  ticked: what it holds since
--       outbox_limit (number): messages that the outbox may hold  outbox_last: id of its last message
--       sets (list): fields and values of state to set  dels (list): fields of state to delete
--       sends (list): messages, see parts/outbox.lua
--       changes...: of tables, see parts/tables.lua
-- reply [OK | DUP | FENCED | GAP | OUTBOX, epoch, checkpoint, rows]; OK with tables: and the server's ms
--       | [BADTYPE, key] for a key of another type, and for a lock with fields that another program wrote
local wrong = wrong_type(lock, 'hash', state, 'hash', messages, 'stream', heads, 'hash', counts, 'hash')
  or wrong_table(tables_at)
if wrong then return {'BADTYPE', wrong} end

local held = redis.call('HMGET', lock, 'owner', 'epoch', 'checkpoint', 'rows', 'from')
local function reply(code)
  return {code, held[2] or '', held[3] or '', held[4] or '0'}
end
if held[1] ~= owner or held[2] ~= epoch then return reply('FENCED') end
if held[5] then return reply('GAP') end  -- as in commit.lua
if not is_count(held[4]) or held[3] and not is_id(held[3]) then return {'BADTYPE', lock} end
local done = redis.call('HGET', state, timer) or ''
if held[3] == checkpoint and done == after then
  -- A repeat writes for WAIT, as in append.lua. HDEL makes Redis accept HSET when memory is full.
  redis.call('HDEL', lock, '')
  redis.call('HSET', lock, 'checkpoint', checkpoint)
  return reply('DUP')
end
if held[3] ~= checkpoint or done ~= before or is_tick_lost(state, last_timer, ticked) then
  return reply('GAP')
end
local sealed_at = knows_end == '' and redis.call('HGET', counts, 'sealed_at')
if sealed_at and tonumber(string.match(after, '^%d+')) > tonumber(sealed_at) then return reply('GAP') end
local code = sends_at <= sends_end and outbox_refuses(messages, heads, outbox_last, outbox_limit)
if code then return reply(code) end

-- The first write is the one that needs memory, as in commit.lua.
local now = text(server_ms())
local refused = outbox_add(messages, sends_at, sends_end)
if refused then return refused end
in_chunks('HSET', state, sets_at, sets_end)
redis.call('HSET', lock, timer, after) -- For viewers, who may not read the state.
outbox_done(heads, sends_at, sends_end)
write_tables(tables_at, changes_at, now)
in_chunks('HDEL', state, dels_at, dels_end)
return {'OK', epoch, checkpoint, held[4], tables_at <= #KEYS and now or nil}
