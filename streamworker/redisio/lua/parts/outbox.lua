-- Adds messages for other streams to an outbox, in the step that also commits what they come from. ARGV has for
-- each: id, target, where it begins and ends, data. `from` and `to` are the indices of the first and last word;
-- without messages `to` is below `from`.

-- Returns why an outbox does not take messages that follow some last id, before anything is written; or nil.
local function outbox_refuses(outbox, heads, last, limit)
  if (redis.call('HGET', heads, '#') or '') ~= last then return 'GAP' end
  if redis.call('XLEN', outbox) >= limit then return 'OUTBOX' end
end

-- Adds messages. Returns an error if the server refuses the first, before anything is written. If a try
-- before was refused after this, they are there already, and not in the heads.
local function outbox_add(outbox, from, to)
  for i = from, to, 5 do
    local added = redis.pcall('XADD', outbox, ARGV[i], 'to', ARGV[i + 1], 'since', ARGV[i + 2],
      'through', ARGV[i + 3], 'data', ARGV[i + 4])
    if added.err and #redis.call('XRANGE', outbox, ARGV[i], ARGV[i]) == 0 then return added end
  end
end

-- Notes in the heads which message is the last, and where each target stands after its messages. Messages that
-- are not noted there are deleted when the outbox is opened.
local function outbox_done(heads, from, to)
  for i = from, to, 5 do
    redis.call('HSET', heads, '#', ARGV[i], ARGV[i + 1], ARGV[i + 3])
  end
end
