-- Acquires the lock, or joins the queue and returns how long the lock stays held. It is safe to run
-- twice: the second run finds the grant or the queue entry of the first.
--
-- KEYS  1 lock, 2 queue, 3 clock, 4 late (see redis_queue.lua)
-- ARGV  1 owner, 2 floor, 3 fair (see there)
--       4 ttl    ms that the grant lasts
--       5 entry  the queue entry, "channel ttl floor owner"; '' does not wait
-- Returns {token or 0, ms left of the present grant, ticks now, place in the queue,
--          1 if neither a grant nor an entry of the caller was found, else 0},
--          and the holder's owner and token

local ttl, entry = ARGV[4], ARGV[5]

local holder = redis.call('HGET', lock, 'owner')
if not holder then
  holder = fair and grant_next()
  if not holder then
    local token = next_token(0)
    grant(caller, ttl, token)
    if entry ~= '' and not fair then
      redis.call('LREM', queue, 1, entry)
    end
    return {token, tonumber(ttl), 0, 0, 1}
  end
end

local state = redis.call('HMGET', lock, 'token', 'ttl')
local left = redis.call('PTTL', lock)
-- If the clock was set back, the grant would last longer than its ttl.
local longest = tonumber(state[2]) or 1000
if left < 0 or left > longest then
  redis.call('PEXPIRE', lock, longest)
  left = longest
end
if holder == caller then
  return {tonumber(state[1]), left, ticks(), 0, 0}
end
if entry == '' then
  return {0, left, 0, 0, 1, holder, state[1]}
end
local place = redis.call('LPOS', queue, entry)
local is_new = place and 0 or 1
if not place then
  place = redis.call('RPUSH', queue, entry) - 1
end
keep_queue(holder, left)
return {0, left, ticks(), place, is_new, holder, state[1]}
