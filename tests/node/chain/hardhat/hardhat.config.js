// A block for each transaction, and one a second besides: pay waits for the chain's clock.
module.exports = {
  solidity: "0.8.28",
  networks: { hardhat: { chainId: 31337, hardfork: "cancun", accounts: [], mining: { auto: true, interval: 1000 } } },
};
