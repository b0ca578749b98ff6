-- Compares the pieces that may still be reserved with what the database has less what is under way,
-- and puts them right. Called by a holder of the sale's lock, so that no order is being written.
--
-- KEYS  1 state, 2 taken, 3 tickets, 4 orders
-- ARGV  1 pieces in the database, 2 '1' to go through customers and tickets too
--       3 name of this server's run, then pairs of customer and pieces taken
-- Returns {left before, left after, customers corrected, tickets forgotten}, nil when not loaded

local before = redis.call('HGET', KEYS[1], 'left')
if not before then
  return false
end
before = tonumber(before)

local flying, numbers, wanted = 0, {}, {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[4], '-', '+')) do
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  local quantity = tonumber(fields.q)
  if quantity and fields.c and fields.n then
    flying = flying + quantity
    wanted[fields.c] = (wanted[fields.c] or 0) + quantity
    numbers[fields.n] = true
  end
end

local after = ARGV[1] - flying
redis.call('HSET', KEYS[1], 'left', after)
if ARGV[2] ~= '1' then
  return {before, after, 0, 0}
end

for i = 4, #ARGV, 2 do
  wanted[ARGV[i]] = (wanted[ARGV[i]] or 0) + ARGV[i + 1]
end
local corrected, forgotten = 0, 0
local taken = redis.call('HGETALL', KEYS[2])
for i = 1, #taken, 2 do
  local customer, pieces = taken[i], tonumber(taken[i + 1])
  if pieces == (wanted[customer] or 0) then
    wanted[customer] = nil
  elseif not wanted[customer] then
    wanted[customer] = 0
  end
end
for customer, pieces in pairs(wanted) do
  redis.call('HSET', KEYS[2], customer, pieces)
  corrected = corrected + 1
end
-- Whoever waits for an entry that is gone may send the form again.
local tickets = redis.call('HGETALL', KEYS[3])
for i = 1, #tickets, 2 do
  if tickets[i + 1]:match(' waiting$') and not numbers[tickets[i]] then
    redis.call('HDEL', KEYS[3], tickets[i])
    forgotten = forgotten + 1
  end
end
redis.call('HSET', KEYS[1], 'run', ARGV[3])
return {before, after, corrected, forgotten}
